"""Decides how long movements take: collectives, halos, redistributions, and their contention."""
