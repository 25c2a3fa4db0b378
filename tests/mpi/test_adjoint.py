"""Every movement and its backward are adjoint: <F x, y> = <x, F' y>, summed over distinct parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from movements import degrees, layouts, move, pairs, stay, step, variants, window
from sharing import allgather

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.network.relation import Full
from hpcpar.plan.boxes import local, shape
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.exchange import exchange
from hpcpar.schedule.pattern import Pattern, backward_pattern, forward_pattern
from hpcpar.schedule.steps import Kind

P = world().size
SEEDS = 6
Movement = tuple[Layout, Layout]
#: Kinds of the forward and of the backward movement.
Kinds = tuple[Kind | None, Kind | None]


def _extents(rng: np.random.Generator) -> tuple[int, ...]:
    """Samples, channels, rows, columns: mostly not divisible by P, sometimes fewer than P."""
    n, c, h, w = (int(rng.integers(2, 2 * P + 4)) for _ in range(4))
    return n, c, h, w


def _grid(rng: np.random.Generator) -> tuple[int, int]:
    a, b = pairs(P)[int(rng.integers(len(pairs(P))))]
    return a, b


def halo_rows(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    return layouts(Config(h=P), Config(h=P), (n, c, h, w), {"h": window(rng, h)})


def halo_corners(rng: np.random.Generator) -> Movement:
    a, b = max(pairs(P), key=lambda ab: min(ab))
    n, c, h, w = _extents(rng)
    return layouts(Config(h=a, w=b), Config(h=a, w=b), (n, c, h, w), {"h": window(rng, h), "w": window(rng, w)})


def channels_to_whole(rng: np.random.Generator) -> Movement:
    """Split channels feed a layer that is split by channel again and reads them all."""
    a, b = _grid(rng)
    n, c, h, w = _extents(rng)
    return layouts(Config(n=a, c=b), Config(n=a, c=b), (n, c, h, w), {"c": (int(rng.integers(1, 9)), Full())})


def channels_to_replicas(rng: np.random.Generator) -> Movement:
    a, b = _grid(rng)
    return layouts(Config(n=a, c=b), Config(n=a, replicas=b), _extents(rng))


def replicas_to_channels(rng: np.random.Generator) -> Movement:
    """Every rank has the whole input of the channels that it makes."""
    a, b = _grid(rng)
    return layouts(Config(n=a, replicas=b), Config(n=a, c=b), _extents(rng), {"c": (int(rng.integers(1, 9)), Full())})


def replicas_to_samples(rng: np.random.Generator) -> Movement:
    a, b = _grid(rng)
    return layouts(Config(n=a, replicas=b), Config(n=P), _extents(rng))


def any_to_any(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    related = {"h": window(rng, h), "w": window(rng, w)} | ({"c": (5, Full())} if rng.random() < 0.3 else {})
    return layouts(degrees(rng, P), degrees(rng, P), (n, c, h, w), related)


#: What each family must contain at least once on several ranks (seeds are fixed, so it does or it never does).
FAMILIES: list[tuple[Callable[[np.random.Generator], Movement], set[Kinds]]] = [
    (halo_rows, {(Kind.HALO, Kind.HALO)}),
    (halo_corners, {(Kind.HALO, Kind.HALO)}),
    (channels_to_whole, {(Kind.ALLGATHER, Kind.REDUCE_SCATTER)}),
    (channels_to_replicas, {(Kind.ALLGATHER, None)}),
    (replicas_to_channels, {(None, Kind.ALLREDUCE)}),
    (replicas_to_samples, {(None, Kind.ALLGATHER)}),
    (any_to_any, {(Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)}),
]


def _part(layout: Layout, rank: int) -> list[int]:
    """Which of the distinct parts a rank holds."""
    return [layout.config.coordinate(axis, rank) for axis in "nchw"]


def _all_ways(communicator: Communicator, pattern: Pattern, holder: Layout, wanter: Layout, values: np.ndarray) -> list[np.ndarray]:
    """The wanted arrays by every algorithm, held and wanted apart and one inside the other."""
    if pattern.kind is None:
        return [stay(holder, wanter, communicator.world.rank, values)]
    return [move(communicator, s, values, shared) for s in variants(step(pattern, holder, wanter)) for shared in (False, True)]


@pytest.mark.parametrize(("family", "kinds"), FAMILIES, ids=[family.__name__ for family, _ in FAMILIES])
def test_movements_are_adjoint(family: Callable[[np.random.Generator], Movement], kinds: set[Kinds], ranks: World,
                               communicator: Communicator) -> None:
    seen: set[Kinds] = set()
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        owned, needed = family(rng)
        there, back = forward_pattern(owned, needed), backward_pattern(owned, needed)
        seen.add((there.kind, back.kind))
        whole = tuple((0, n) for n in owned.shape)
        x = rng.standard_normal(owned.shape)
        # every part of the needed layout has values of its own, its replicas the same: drawn by part, one after the other
        y, expected = np.zeros(0), np.zeros(owned.shape)
        for rank in (r for r in range(P) if needed.config.coordinate("replicas", r) == 0):
            values = rng.standard_normal(shape(needed.box(rank)))
            expected[local(needed.box(rank), whole)] += values
            if _part(needed, rank) == _part(needed, ranks.rank):
                y = values
        mine, want = local(owned.box(ranks.rank), whole), local(needed.box(ranks.rank), whole)
        # products count distinct parts once: the first replica of each
        counted = [layout.config.coordinate("replicas", ranks.rank) == 0 for layout in (needed, owned)]
        images = _all_ways(communicator, there, owned, needed, x[mine])
        totals = _all_ways(communicator, back, needed, owned, y)
        for image in images:
            np.testing.assert_array_equal(image, x[want], err_msg=f"seed {seed}: forward {there}")
        for total in totals:
            np.testing.assert_allclose(total, expected[mine], rtol=0, atol=1e-12, err_msg=f"seed {seed}: backward {back}")
        left = [float((image * y).sum()) * counted[0] for image in images]
        right = [float((x[mine] * total).sum()) * counted[1] for total in totals]
        bits = tuple(total.tobytes() for total in totals)
        everyone = allgather(ranks, (left, right, mine, bits))
        products = [sum(values) for side in (0, 1) for values in zip(*(found[side] for found in everyone), strict=True)]
        assert np.ptp(products) <= 1e-10 * max(1.0, abs(products[0])), f"seed {seed}: <Fx, y> = {products[:len(images)]}, " \
            f"<x, F'y> = {products[len(images):]}"
        same = {data for _, _, place, data in everyone if place == mine}
        assert len(same) == 1, f"seed {seed}: replicas differ in their bits after {back}"
    assert P == 1 or kinds <= seen, f"{family.__name__} should show {kinds}, only {seen} came up"


@pytest.mark.skipif(P < 3, reason="needs a neighbour's neighbour")
def test_halos_reach_past_the_nearest_neighbour(ranks: World) -> None:
    """Proof that the families above hold the hard cases: far neighbours, and with a grid those across corners."""
    far = corner = False
    for family in (halo_rows, halo_corners):
        for seed in range(SEEDS):
            owned, needed = family(np.random.default_rng(seed))
            there = forward_pattern(owned, needed)
            if there.kind is not Kind.HALO:
                continue
            for rank in range(P):
                place = {a: owned.config.coordinate(a, rank) for a in "hw"}
                for message in exchange(step(there, owned, needed), rank).rounds[:1]:
                    for other in message.recvs:
                        away = [abs(owned.config.coordinate(a, other.peer) - place[a]) for a in "hw"]
                        far |= max(away) > 1
                        corner |= min(away) > 0
    assert far
    assert corner or all(min(ab) == 1 for ab in pairs(P))
