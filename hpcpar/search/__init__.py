"""The best plan."""
