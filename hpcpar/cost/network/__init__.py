"""Communication cost: collectives, halos, redistributions, contention, choice of algorithm."""
