"""Decides how much memory the largest rank needs."""
