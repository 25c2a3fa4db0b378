"""Decides when the steps of an iteration run, beside each other and in pipelines."""
