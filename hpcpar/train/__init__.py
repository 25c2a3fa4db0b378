"""Doing the rest: layers on local blocks, optimiser, data, checkpoints, the loop, the record of a run."""
