"""Training: the loop, checkpoints, the record of a run, verification."""
