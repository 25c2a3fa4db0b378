"""Decides how collectives run: one file for each algorithm, and one entry in `registry`."""
