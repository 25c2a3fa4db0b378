"""Layers on a rank's own block: forward, backward, weight gradient."""
