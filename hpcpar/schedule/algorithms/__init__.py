"""Algorithms of collectives: one file each, and one entry in `registry`."""
