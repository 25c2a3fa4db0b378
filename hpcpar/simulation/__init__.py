"""Simulation of all ranks of a plan, message by message."""
