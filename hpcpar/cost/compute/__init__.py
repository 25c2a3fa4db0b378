"""Compute cost: the work of each step, and its time."""
