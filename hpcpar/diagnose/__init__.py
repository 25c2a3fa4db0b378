"""What can run here: the environment of every rank, and findings with remedies."""
