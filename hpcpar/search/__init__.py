"""Decides which plan is the best."""
