"""Scaling studies: many plans made, run by a launcher, and collected into one report."""
