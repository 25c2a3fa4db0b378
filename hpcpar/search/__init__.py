"""Search for the best plan."""
