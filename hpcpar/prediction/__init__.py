"""The price of a single plan."""
