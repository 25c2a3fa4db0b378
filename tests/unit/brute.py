"""Slow answers that need no thought: every rank, every element, every cut, one after the other."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, SoftmaxCrossEntropy
from hpcpar.network.layers.base import axes_of
from hpcpar.plan.boxes import Box, items
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.messages import counts, exchange
from hpcpar.schedule.steps import Comm
from tests.mpi.networks import random_network


# -- messages --------------------------------------------------------------------------------------
def busiest(step: Comm, ranks: int) -> tuple[int, int]:
    """The most messages, and the most bytes, that any rank sends in a step."""
    every = [counts(step, rank) for rank in range(ranks)]
    return max(c.messages for c in every), max(c.sent_bytes for c in every)


def received(step: Comm, ranks: int) -> list[int]:
    """Items that each rank receives."""
    return [sum(m.stop - m.start for r in exchange(step, rank).rounds for m in r.recvs)
            for rank in range(ranks)]


# -- boxes as masks of the global tensor -----------------------------------------------------------
def within(box: Box, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The box's elements, in an array of the whole; index -1 is the last."""
    return np.ix_(*(np.arange(*interval) % n for interval, n in zip(box, shape, strict=True)))


def mask(box: Box, shape: Sequence[int]) -> np.ndarray:
    """True at the box's elements."""
    out = np.zeros(shape, bool)
    out[within(box, shape)] = True
    return out


def common(a: Box, b: Box, shape: Sequence[int]) -> int:
    """Elements in both boxes."""
    return np.count_nonzero(mask(a, shape)[within(b, shape)])


def lacking(have: Layout, want: Layout, ranks: int) -> list[int]:
    """Elements that each rank wants and does not have."""
    return [items(want.box(r)) - common(have.box(r), want.box(r), have.shape) for r in range(ranks)]


def part_of_work(network: Network, layer: Layer, config: Config, rank: int) -> tuple[int, ...]:
    """Which part of the layer's work a rank does: ranks with equal parts compute the same."""
    axes = [a for a in "ncdhw" if a in axes_of(network.shapes[layer.name])]
    return tuple(config.coordinate(a, rank) for a in (*axes, "k"))


def lacking_sums(network: Network, e: Edge, ranks: int) -> list[int]:
    """Summands of the input's gradient that each rank is without: of each element that it owns, one
    from every other part that needs it.
    """
    config = e.needed.config
    parts = {part_of_work(network, e.consumer, config, rank): rank for rank in range(ranks)}
    out = []
    for rank in range(ranks):
        mine = part_of_work(network, e.consumer, config, rank)
        others = [source for part, source in parts.items() if part != mine]
        out.append(sum(common(e.owned.box(rank), e.needed.box(source), e.owned.shape)
                       for source in others))
    return out


# -- plans -----------------------------------------------------------------------------------------
def random_configs(network: Network, seed: int, ranks: int) -> dict[str, Config]:
    """A random configuration for every layer, with partial sums and in both placements."""
    draw = random.Random(seed)
    configs = {}
    for layer in network.layers:
        axes = ["n", "c", "h", "w",
                "replicas"] if len(network.shapes[layer.name]) == 3 else ["n", "c", "replicas"]
        if isinstance(layer, SoftmaxCrossEntropy):
            axes.remove("c")
        if layer.is_matmul and getattr(layer, "groups", 1) == 1:
            axes.append("k")
        degrees, left = dict.fromkeys(axes, 1), ranks
        for prime in (2, 3):
            while left % prime == 0:
                degrees[draw.choice(axes)] *= prime
                left //= prime
        configs[layer.name] = Config(**degrees, scatter=draw.random() < 0.5,
                                     placement=draw.choice(list(PLACEMENTS)))
    return configs


def random_plan(seed: int, ranks: int) -> tuple[Network, Plan]:
    """A random network, and a plan of random configurations."""
    network, batch = random_network(seed)
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    return network, Plan(spec, ranks, batch, "random", random_configs(network, seed, ranks))


# -- stages ----------------------------------------------------------------------------------------
def crossing(network: Network, at: int) -> set[str]:
    """Layers before position `at` whose output is read at or after it."""
    names = [layer.name for layer in network.layers]
    late = set(names[at:])
    return {name for name in names[:at] if late & set(network.consumers[name])}


def least_largest(work: Sequence[float], cuts: Sequence[int], count: int) -> float:
    """The smallest that the largest of `count` stages can be, over every choice of inner cuts."""
    best = math.inf
    for chosen in itertools.combinations(cuts[1:-1], count - 1):
        ends = [0, *chosen, len(work)]
        best = min(best, max(sum(work[a:b]) for a, b in itertools.pairwise(ends)))
    return best
