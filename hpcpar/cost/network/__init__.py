"""The price of communication: collectives, halos, redistributions, contention, choice of algorithm.
"""
