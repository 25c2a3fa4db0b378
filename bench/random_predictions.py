"""Predictions of random plans equal simulations of all their ranks, to rounding.

Run: ``python bench/random_predictions.py --cases 300 --seed 0``. A case is a preset machine, 2 to
512 ranks, a network, and either a named strategy with random options or a random configuration of
each layer. Prints the cases that differ, their number, and the largest relative difference. Ends
with status 1 if any differs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from bench.never_worse import KINDS, NETWORKS, OPTIONS, drawn_plan  # noqa: E402
from hpcpar.api.plan import plan as planned  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.plan.plan import Plan  # noqa: E402
from hpcpar.prediction.price import price  # noqa: E402
from hpcpar.report.tables import say  # noqa: E402
from hpcpar.simulation.simulate import Simulator  # noqa: E402
from tests.mpi.networks import random_graph, random_network  # noqa: E402
from tests.mpi.plans import random_plan, staged_plan  # noqa: E402

#: Largest relative difference that counts as rounding.
TOLERANCE = 1e-9
COLLECTIVES = ("auto", "ring", "tree", "halving", "mpi")


@dataclass(frozen=True)
class Case:
    """A plan on a machine; `words` say which."""

    words: str
    network: Network
    plan: Plan
    machine: Machine

    def difference(self) -> float:
        """Largest relative difference of the predicted time, and of the sum of its parts, from the
        simulated time.
        """
        predicted = price(self.network, self.plan, self.machine)
        simulated_s = Simulator(self.network, self.plan, self.machine).play().mean_s
        parts_s = predicted.compute_s + predicted.exposed_communication_s + predicted.bubble_s
        return max(abs(s / simulated_s - 1) for s in (predicted.iteration_s, parts_s))


def drawn_ranks(draw: random.Random, most: int) -> int:
    """A number of ranks from 2 on, smaller ones more often; every third is a power of two."""
    exact = draw.uniform(1, np.log2(most))
    return 2 ** round(exact) if draw.random() < 1 / 3 else round(2**exact)


def named_case(draw: random.Random, ranks: int, machine: str, networks: tuple[str, ...]) -> Case:
    """A named strategy with random options.

    Raises
    ------
    InputError
        The network cannot be cut like that.
    """
    network = draw.choice(networks)
    batch = max(1, round(NETWORKS[network] * draw.choice((0.25, 1, 1.1)) * ranks))
    options = drawn_plan(draw, ranks, tuple(OPTIONS)) | {"collectives": draw.choice(COLLECTIVES)}
    found = planned(network, ranks, batch, machine, **options)
    words = " ".join([network, f"batch {batch}", *(f"--{o} {v}" for o, v in options.items())])
    return Case(words, found.plan.network.build(), found.plan, files.load(machine))


def random_case(draw: random.Random, ranks: int, machine: str) -> Case:
    """A random network with a random configuration of each layer.

    Raises
    ------
    InputError
        The plan cannot be priced.
    """
    make_network, seed = draw.choice((random_network, random_graph)), draw.randrange(1000)
    network, batch = make_network(seed)
    batch *= draw.choice((1, ranks))
    make_plan = draw.choice((random_plan, random_plan, staged_plan))
    plan = replace(make_plan(network, batch, ranks, np.random.default_rng(seed)),
                   collectives=draw.choice(COLLECTIVES))
    return Case(f"{network.name} batch {batch} {make_plan.__name__}", network, plan,
                files.load(machine))


def drawn_case(seed: int, most_ranks: int = 512, networks: tuple[str, ...] = KINDS) -> Case:
    """The case of a seed: half of them named, half random."""
    draw = random.Random(seed)
    while True:
        ranks, machine = drawn_ranks(draw, most_ranks), draw.choice(files.presets())
        try:
            case = (named_case(draw, ranks, machine, networks) if draw.random() < 0.5 else
                    random_case(draw, ranks, machine))
        except InputError:
            continue
        return replace(case, words=f"{machine} {ranks} ranks {case.words}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case (default 0)")
    parser.add_argument("--ranks", type=int, default=512, help="most ranks (default 512)")
    args = parser.parse_args()
    begin, largest, differ = time.perf_counter(), 0.0, 0
    for number, seed in enumerate(range(args.seed, args.seed + args.cases), 1):
        case = drawn_case(seed, args.ranks)
        difference = case.difference()
        largest = max(largest, difference)
        if not difference <= TOLERANCE:
            differ += 1
            say(f"seed {seed}: {difference:.1e}: {case.words}")
        elif number % 20 == 0:
            say(f"{number} cases, {differ} differ, at most {largest:.1e}, "
                f"{time.perf_counter() - begin:.0f} s")
    say(f"{args.cases} predictions of 2 to {args.ranks} ranks: {differ} differ from the "
        f"simulation by more than {TOLERANCE:g}; largest difference {largest:.1e}")
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
