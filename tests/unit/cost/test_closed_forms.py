"""Closed forms of collectives against their tables of messages, on machines of one to three levels,
in nodes and racks that are full or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpcpar.cost.network.contention import NetworkModel, Route, route
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.network.receptive_field import Full
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Config, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule.algorithms.base import ROOTED, Algorithm
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Comm, Kind, Pattern, Phase, Role, TensorRef
from hpcpar.simulation.links import LinkRates
from hpcpar.simulation.movement import Movement
from tests.collectives import BY_KIND, collective_s

ITEM = 4
#: Ranks of a node, and of a rack; 0: of the whole machine.
SIZES = {"1 level": (0,), "2 levels": (4, 0), "3 levels": (4, 12, 0)}
#: Primes, powers of two, odd composites, full nodes and racks, one rank more.
MEMBERS = (*range(2, 18), 20, 21, 24, 25, 27, 31, 32, 33, 36, 45, 47, 48, 49, 60, 63, 64)
CASES = [(kind, ALGORITHMS[name]) for kind, names in BY_KIND.items() for name in names]


def machine(sizes: tuple[int, ...], links: float = 0.0) -> Machine:
    """Levels that are slower the farther out; a unit has `links` to the level above (0: no limit).
    """
    levels = tuple(Level(f"level {i}", size, 1e-6 * (i + 1)**2, 1e-10 * (i + 1)**2,
                         links=links if i else 0.0) for i, size in enumerate(sizes))
    return replace(files.load("local"), levels=levels, collectives=(), add_s_per_byte=3e-10,
                   copy_s_per_byte=0.0)


def table_s(kind: Kind, name: str, p: int, items: int, segments: int, way: Route) -> float:
    """Seconds of the last of `p` ranks, message by message."""
    config, known = Config(n=p), way.network_model.machine
    cut = Layout(config, (Axis("n", items, items),))
    whole = Layout(config, (Axis("n", items, items, relation=Full()),))
    step = Comm(Phase.FORWARD, "layer", TensorRef("layer", Role.OUTPUT),
                Pattern(kind, False, (MeshAxis(1, p),)),
                cut if kind is Kind.ALLGATHER else whole,
                cut if kind is Kind.REDUCE_SCATTER else whole, ITEM, algorithm=name,
                segments=segments, root=way.root, inner=int(way.inner), needed_by=1)
    return float(Movement(step, p, known, LinkRates(known), 1.0, 0.0).alone_s.max())


def variants(kind: Kind, entry: Algorithm, p: int) -> Iterator[tuple[int, int]]:
    """Numbers of segments, and roots."""
    for segments in (1, *entry.pieces(kind)):
        yield from ((segments, root) for root in ((0, p // 2, p - 1) if kind in ROOTED else (0,)))


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize("levels", SIZES)
def test_seconds_without_contention(levels: str, p: int) -> None:
    """Equal, but for halving's allreduce around an odd rest that spans nodes: its price has all
    messages leave their node, and two in every round that passes the end of the buffer.
    """
    known = NetworkModel(machine(SIZES[levels]))
    items = p * 16 * 60  # blocks, and their pieces, of one size
    for kind, entry in CASES:
        for segments, root in variants(kind, entry, p):
            way = route(known, [MeshAxis(1, p)], p, root)
            closed_s = float(collective_s(kind, entry.name, items * ITEM, segments, way,
                                          known.machine.add_s_per_byte))
            ratio = closed_s / table_s(kind, entry.name, p, items, segments, way)
            what = (kind, entry.name, segments, root, ratio)
            odd = p // (p & -p)
            if (kind, entry.name) == (Kind.ALLREDUCE, "halving") and odd > 1 and way.level:
                assert 1 - 1e-9 < ratio < 1.15, what
            else:
                assert ratio == pytest.approx(1, rel=1e-9), what


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize("levels", SIZES)
def test_seconds_with_contention(levels: str, p: int) -> None:
    """With one link for each node and rack: rings, reductions and broadcasts are equal; so are all
    where each unit is full and p is a power of two. Else the fullest unit counts for all messages
    of a round, and no time is less than the table's.
    """
    known = NetworkModel(machine(SIZES[levels], links=1.0))
    units = [size for size in SIZES[levels] if size and size < p]
    full = all(p % size == 0 for size in units) and p & (p - 1) == 0
    for kind, entry in CASES:
        for segments, root in variants(kind, entry, p):
            way = route(known, [MeshAxis(1, p)], p, root)
            closed_s = float(collective_s(kind, entry.name, p * 960 * ITEM, segments, way,
                                          known.machine.add_s_per_byte))
            ratio = closed_s / table_s(kind, entry.name, p, p * 960, segments, way)
            what = (kind, entry.name, segments, root, ratio)
            if full or kind in ROOTED or entry.name == "ring" or not units:
                assert ratio == pytest.approx(1, rel=1e-9), what
            else:
                assert ratio > 1 - 1e-9, what
