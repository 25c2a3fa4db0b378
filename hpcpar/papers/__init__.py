"""Closed forms of integrated model, batch and domain parallelism (Gholami et al.)."""
