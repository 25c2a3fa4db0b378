"""Memory of the largest rank."""
