"""Prices of collectives against simulations of their messages, on machines of one to three levels,
in nodes and racks that are full or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpcpar.cost.network import collective
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import NetworkModel, Route, route
from hpcpar.cost.network.links import LinkRates
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.network.receptive_field import Full
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Config, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule.algorithms.base import ROOTED, Algorithm
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Comm, Kind, Pattern, Phase, Role, TensorRef
from hpcpar.simulation.movement import Movement
from tests.collectives import BY_KIND

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
    return float(Movement(step, p, known, LinkRates(NetworkModel(known)), 1.0, 0.0).alone_s.max())


def variants(kind: Kind, entry: Algorithm, p: int) -> Iterator[tuple[int, int]]:
    """Numbers of segments, and roots."""
    for segments in (1, *entry.pieces(kind)):
        yield from ((segments, root) for root in ((0, p // 2, p - 1) if kind in ROOTED else (0,)))


@pytest.mark.parametrize("links", [0.0, 1.0])
@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize("levels", SIZES)
def test_prices_equal_simulations(levels: str, p: int, links: float) -> None:
    """Without contention, and with one link for each node and rack."""
    known = NetworkModel(machine(SIZES[levels], links))
    items = p * 16 * 60  # blocks, and their pieces, of one size
    for kind, entry in CASES:
        for segments, root in variants(kind, entry, p):
            way = route(known, [MeshAxis(1, p)], p, root)
            price_s = float(collective_s(kind, entry.name, items * ITEM, segments, way))
            assert price_s == pytest.approx(
                table_s(kind, entry.name, p, items, segments, way), rel=1e-9), (
                    kind, entry.name, segments, root)


@pytest.mark.parametrize("links", [0.0, 1.0])
@pytest.mark.parametrize("axes", [
    ((1, 24),), ((1, 6), (12, 2)), ((2, 12),), ((3, 8),), ((1, 2), (4, 3)), ((12, 2),), ((1, 48),),
    ((1, 64),), ((4, 16),)])
@pytest.mark.parametrize("levels", SIZES)
def test_large_jobs_have_an_upper_bound(levels: str, axes: tuple[tuple[int, int], ...],
                                        links: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the price where all ranks have equal links, and less than twice as much elsewhere."""
    ranks = 64 if (1, 64) in axes or (4, 16) in axes else 48
    mesh_axes = [MeshAxis(*axis) for axis in axes]
    n_bytes = 48 * 64 * 60 * ITEM

    def price_s(most_ranks: int) -> float:
        monkeypatch.setattr(collective, "MOST_RANKS", most_ranks)
        way = route(NetworkModel(machine(SIZES[levels], links)), mesh_axes, ranks)
        return float(collective_s(kind, entry.name, n_bytes, 1, way))

    for kind, entry in CASES:
        if kind in ROOTED or not entry.together:
            continue
        exact_s, bound_s = price_s(1024), price_s(1)
        assert (1 - 1e-9) * exact_s <= bound_s <= 2 * exact_s, (kind, entry.name)
        if len(SIZES[levels]) == 1:
            assert bound_s == pytest.approx(exact_s, rel=1e-9)
