"""Timelines of runs and of plans for other programs."""
