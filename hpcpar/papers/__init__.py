"""Closed forms of the five papers: oracles for tests and benches."""
