"""Algorithms of collectives: one file and one entry each, `hpcpar.schedule.algorithms.registry`."""
