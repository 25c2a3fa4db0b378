"""Training and inference: the loops, checkpoints, records, verification."""
