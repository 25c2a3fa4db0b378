"""The time of an iteration: what overlaps with what, and pipelines."""
