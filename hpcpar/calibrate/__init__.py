"""Measures a machine in a job, and refines its file by records of runs."""
