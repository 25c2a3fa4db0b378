"""Decides how long compute steps take: the work of each step, and its time."""
