"""Operators: each computes a layer on one rank's block (forward, backward, weight gradient)."""
