"""Simulation: all ranks of a plan in virtual time, message by message."""
