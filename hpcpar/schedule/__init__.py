"""Decides what a plan implies: the steps of an iteration, and the one lowering that makes them."""
