"""The memory of the largest rank."""
