"""Closed forms from the five papers: oracles for tests and benchmarks."""
