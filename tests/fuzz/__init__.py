"""Seeded mutations of every file and option of hpcpar: ``python -m tests.fuzz --help``."""
