"""Predicted memory beside the packed memory that an executor allocates: built-in networks, and
random networks of some kilobytes.

    python -m bench.packed_memory [PLANS]
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.prediction.price import price
from tests.unit.brute import random_plan
from tests.unit.cost.allocation import allocated, skip_initial_weights

MACHINE = files.load("local")


#: Built-in networks, strategies, ranks and batches.
BUILT_IN = (("resnet50", "data", 2, 32), ("resnet50", "spatial", 4, 32),
            ("inception_v3", "filter", 2, 32), ("unet", "spatial", 2, 8), ("vgg16", "data", 2, 32),
            ("lenet5", "filter", 2, 64))


def ratios(net: Network, plan: Plan) -> tuple[float, float]:
    """Bytes alive at the peak, and bytes allocated, of the largest rank, over the predicted bytes.
    """
    schedule = schedule_for(net, plan)
    real = [allocated(plan, schedule, rank, net) for rank in range(plan.ranks)]
    predicted = price(net, plan, MACHINE).memory_bytes
    return (max(sum(r.values()) - r["unused"] for r in real) / predicted,
            max(sum(r.values()) for r in real) / predicted)


def of_random(seed: int) -> tuple[float, float]:
    """The ratios of a random plan."""
    net, plan = random_plan(seed, (1, 2, 3, 4, 6, 8)[seed % 6])
    return ratios(net, replace(plan, machine=MACHINE))


def of_built_in(name: str, strategy: str, ranks: int, batch: int) -> tuple[float, float]:
    """The ratios of a strategy on a built-in network."""
    net = network(name)
    spec = NetworkSpec(name, net.image_shape, net.classes)
    return ratios(net, make_plan(spec, strategy, ranks, batch, network=net, machine=MACHINE))


def main() -> None:
    """Print the ratios."""
    plans = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    with pytest.MonkeyPatch.context() as patch:
        skip_initial_weights(patch)
        print("bytes over predicted bytes")
        for case in BUILT_IN:
            alive, packed = of_built_in(*case)
            print(f"{case[0]}, {case[1]}: alive at the peak {alive:.4f}, allocated {packed:.4f}")
        every = np.array([of_random(seed) for seed in range(plans)]).T
    print(f"{plans} random plans:")
    for what, ratio in zip(("alive at the peak", "allocated"), every, strict=True):
        print(f"{what}: median {np.median(ratio):.4f}, largest {ratio.max():.4f}, "
              f"{(ratio > 1.03).sum()} above 1.03")


if __name__ == "__main__":
    main()
