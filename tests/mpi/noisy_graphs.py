"""Prints the seeds of random graphs that rounding of the data moves too far to be compared: the
`NOISY` of `networks.py`, to be renewed when `graphs.py` draws anything else.

    python -m tests.mpi.noisy_graphs [FIRST LAST]
"""

from __future__ import annotations

import sys

import numpy as np

from tests.mpi.networks import random_graph, rate, sample
from tests.reference import Reference

STEPS, MOST = 5, 3e-12


def trained(seed: int, optimizer: str, rounding: float) -> dict[str, np.ndarray]:
    """Results of a short training run on data with relative errors of the size of `rounding`."""
    network, batch = random_graph(seed)
    rng = np.random.default_rng(seed)
    images, targets = (a.reshape(STEPS, batch, *a.shape[1:])
                       for a in sample(network, STEPS * batch, rng))
    images = images * (1 + rounding * rng.standard_normal(images.shape))
    reference = Reference(network, 7, optimizer=optimizer)
    for i in range(STEPS):
        reference.iterate(images[i], targets[i], i, rate(network), 0.9, 0.01)
    found = dict(reference.outputs)
    found |= {f"gradient of {name}": array for name, array in reference.gradients.items()}
    for name, arrays in reference.weight_gradients.items():
        found |= {f"{i} of {name}": a for i, a in enumerate(arrays)}
    return found


def is_noisy(seed: int) -> bool:
    """True where some result moves by more than `MOST` of its largest value, or blows up."""
    for optimizer in ("momentum", "adam"):
        first, second = (trained(seed, optimizer, rounding) for rounding in (0.0, 1e-15))
        for name, array in first.items():
            most = abs(array).max()
            if not (most < 1e6 and abs(array - second[name]).max() <= MOST * most):
                return True
    return False


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:] or (0, 1000))
    print(", ".join(str(seed) for seed in range(first, last) if is_noisy(seed)))
