"""Every movement and its backward are adjoint: <F x, y> = <x, F' y>, summed over distinct parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.network.builder import Chain
from hpcpar.network.layers import Conv2d, GlobalAvgPool, MeanSquaredError
from hpcpar.network.receptive_field import Full, Groups, Periodic
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import local, shape
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.layout import Layout, computed
from hpcpar.plan.layout import owned as output
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.schedule.edges import edges
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.pattern import patterns
from hpcpar.schedule.pattern_family import collective
from hpcpar.schedule.steps import NOTHING, Kind, Pattern
from tests.mpi.movements import (
    degrees,
    enlarging,
    layouts,
    move,
    pairs,
    some_ranks,
    stay,
    step,
    variants,
    window,
)
from tests.mpi.networks import random_graph, random_unet
from tests.mpi.plans import random_config
from tests.mpi.sharing import allgather
from tests.mpi.zoo import moves
from tests.unit.brute import within

P = world().size
SEEDS = 6
#: Random graphs, each under a random plan.
GRAPHS = 6
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
    return layouts(Config(h=a, w=b), Config(h=a, w=b), (n, c, h, w),
                   {"h": window(rng, h), "w": window(rng, w)})


def enlarged_rows(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    return layouts(Config(h=P), Config(h=P), (n, c, h, w), {"h": enlarging(rng, h)})


def around(rng: np.random.Generator) -> Movement:
    """Halos around the ends of two axes, up to a whole axis wide."""
    a, b = max(pairs(P), key=lambda ab: min(ab))
    extents = _extents(rng)
    related = {}
    for axis, n in zip("hw", extents[2:], strict=True):
        before, after = (int(i) for i in rng.integers(0, [n // 2 + 1, n + 1]))
        related[axis] = before + n + after, Periodic(before)
    return layouts(Config(h=a, w=b), Config(h=a, w=b), extents, related)


def enlarged_to_any(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    return layouts(degrees(rng, P), degrees(rng, P), (n, c, h, w),
                   {"h": enlarging(rng, h), "w": enlarging(rng, w)})


def channels_to_whole(rng: np.random.Generator) -> Movement:
    """Split channels feed a layer that is split by channel again and reads them all."""
    a, b = _grid(rng)
    n, c, h, w = _extents(rng)
    return layouts(Config(n=a, c=b), Config(n=a, c=b), (n, c, h, w),
                   {"c": (int(rng.integers(1, 9)), Full())})


def channels_to_replicas(rng: np.random.Generator) -> Movement:
    a, b = _grid(rng)
    return layouts(Config(n=a, c=b), Config(n=a, replicas=b), _extents(rng))


def replicas_to_channels(rng: np.random.Generator) -> Movement:
    """Every rank has the whole input of the channels that it makes."""
    a, b = _grid(rng)
    return layouts(Config(n=a, replicas=b), Config(n=a, c=b), _extents(rng),
                   {"c": (int(rng.integers(1, 9)), Full())})


def replicas_to_groups(rng: np.random.Generator) -> Movement:
    """Every rank has the whole input; a grouped convolution reads the channels of a group. Some
    ranks have no outputs.
    """
    a, b = _grid(rng)
    return _grouped(rng, a, b, next((g for g in (2, 3, b) if b % g == 0), b))


def replicas_to_two_groups(rng: np.random.Generator) -> Movement:
    """An odd number of ranks: one has outputs of both groups."""
    return _grouped(rng, *_grid(rng), 2)


def _grouped(rng: np.random.Generator, a: int, b: int, groups: int) -> Movement:
    (n, c, h, w), outs = _extents(rng), int(rng.integers(1, 5))
    return layouts(Config(n=a, replicas=b), Config(n=a, c=b), (n, c * groups, h, w),
                   {"c": (outs * groups, Groups(groups, outs, c))})


def replicas_to_samples(rng: np.random.Generator) -> Movement:
    a, b = _grid(rng)
    return layouts(Config(n=a, replicas=b), Config(n=P), _extents(rng))


def volumes(rng: np.random.Generator) -> Movement:
    """Halos along depth and another axis."""
    a, b = _grid(rng)
    n, c, h, w = _extents(rng)
    d, axis = int(rng.integers(2, 2 * P + 4)), str(rng.choice(["h", "w"]))
    cut = Config(d=a, **{axis: b})
    return layouts(cut, cut, (min(n, 3), min(c, 3), d, h, w),
                   {"d": window(rng, d), axis: window(rng, h if axis == "h" else w)})


def volumes_to_any(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    d = int(rng.integers(2, 2 * P + 4))
    related = {"d": window(rng, d)} if rng.random() < 0.7 else {}
    return layouts(degrees(rng, P, axes="ncdhw"), degrees(rng, P, axes="ncdhw"),
                   (min(n, 3), min(c, 3), d, h, w), related)


def some_to_some(rng: np.random.Generator) -> Movement:
    """From some ranks to others (or more, or fewer of them), as between the stages of a pipeline.
    """
    (a, first), (b, second) = some_ranks(rng, P), some_ranks(rng, P)
    n, c, h, w = _extents(rng)
    related = {"h": window(rng, h)} | ({"c": (5, Full())} if rng.random() < 0.3 else {})
    return layouts(degrees(rng, a, first), degrees(rng, b, second), (n, c, h, w), related)


def some_among_themselves(rng: np.random.Generator) -> Movement:
    """Split channels feed a layer on the same ranks, which are not all, that reads them all."""
    used, first = some_ranks(rng, P)
    a, b = pairs(used)[int(rng.integers(len(pairs(used))))]
    config = Config(n=a, c=b, first=first)
    return layouts(config, config, _extents(rng), {"c": (int(rng.integers(1, 9)), Full())})


def any_to_any(rng: np.random.Generator) -> Movement:
    n, c, h, w = _extents(rng)
    related = {"h": window(rng, h), "w": window(rng, w)} | ({"c": (5, Full())} if rng.random() < 0.3
                                                            else {})
    return layouts(degrees(rng, P), degrees(rng, P), (n, c, h, w), related)


#: Movements that each family must contain at least once on several ranks (seeds are fixed, so it
#: always does or never does).
FAMILIES: list[tuple[Callable[[np.random.Generator], Movement], set[Kinds]]] = [
    (halo_rows, {(Kind.HALO, Kind.HALO)}),
    (halo_corners, {(Kind.HALO, Kind.HALO)}),
    (enlarged_rows, {(Kind.HALO, Kind.HALO)}),
    (around, {(Kind.HALO, Kind.HALO)}),
    (enlarged_to_any, {(Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)}),
    (channels_to_whole, {(Kind.ALLGATHER, Kind.REDUCE_SCATTER)}),
    (channels_to_replicas, {(Kind.ALLGATHER, None)}),
    (replicas_to_channels, {(None, Kind.ALLREDUCE)}),
    (replicas_to_groups, {(None, Kind.ALLGATHER)}),
    (replicas_to_two_groups, set()),
    (replicas_to_samples, {(None, Kind.ALLGATHER)}),
    (volumes, {(Kind.HALO, Kind.HALO)}),
    (volumes_to_any, {(Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)}),
    (some_to_some, {(Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)}),
    (some_among_themselves, {(Kind.ALLGATHER, Kind.REDUCE_SCATTER)}),
    (any_to_any, {(Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)}),
]


def _part(layout: Layout, rank: int) -> tuple[int, ...]:
    """Which of the distinct parts a rank holds: ranks of one part have the same values."""
    return tuple(int(d.of(rank - layout.config.first)) for d in layout.config.mesh_axes.values()
                 if d not in layout.copies)


def _first(layout: Layout, rank: int) -> bool:
    """True for one rank of every part."""
    return layout.holds(rank) and layout.replica(rank) == 0


def _all_ways(communicator: Communicator, pattern: Pattern, source: Layout, destination: Layout,
              values: np.ndarray) -> list[np.ndarray]:
    """The wanted arrays by every algorithm, held and wanted apart and one inside the other."""
    if pattern.kind is None:
        return [stay(source, destination, communicator.world.rank, values)]
    return [move(communicator, s, values, shared)
            for s in variants(step(pattern, source, destination))
            for shared in (False, True)]


def _adjoint(owned: Layout, needed: Layout, ways: tuple[Pattern, Pattern, Pattern],
             rng: np.random.Generator, communicator: Communicator, what: str) -> None:
    """Move random values there, and others back, after a sum in place; compare both with what they
    should be, and the products with each other.
    """
    there, back, in_place = ways
    ranks = communicator.world
    whole = tuple((0, n) for n in owned.shape)
    x = rng.standard_normal(owned.shape)
    # every part of the needed layout has values of its own, its replicas the same: drawn by part,
    # one after the other
    y, expected = np.zeros(shape(needed.box(ranks.rank))), np.zeros(owned.shape)
    for rank in (r for r in range(P) if _first(needed, r)):
        values = rng.standard_normal(shape(needed.box(rank)))
        if values.size:
            np.add.at(expected, within(needed.box(rank), owned.shape), values)
        if needed.holds(ranks.rank) and _part(needed, rank) == _part(needed, ranks.rank):
            y = values
    mine, want = local(owned.box(ranks.rank), whole), within(needed.box(ranks.rank), owned.shape)
    # products count distinct parts once
    counted = [_first(layout, ranks.rank) for layout in (needed, owned)]
    images = _all_ways(communicator, there, owned, needed, x[mine])
    totals = [total for sums in _all_ways(communicator, in_place, needed, needed, y)
              for total in _all_ways(communicator, back, needed, owned, sums)]
    for image in images:
        np.testing.assert_array_equal(image, x[want], err_msg=f"{what}: forward {there}")
    for total in totals:
        np.testing.assert_allclose(total, expected[mine], rtol=0, atol=1e-12,
                                   err_msg=f"{what}: backward {back}")
    left = [float((image * y).sum()) * counted[0] for image in images]
    right = [float((x[mine] * total).sum()) * counted[1] for total in totals]
    bits = tuple(total.tobytes() for total in totals)
    everyone = allgather(ranks, (left, right, mine, bits))
    products = [sum(values) for side in (0, 1)
                for values in zip(*(found[side] for found in everyone), strict=True)]
    assert np.ptp(products) <= 1e-10 * max(1.0, abs(products[0])), (
        f"{what}: <Fx, y> = {products[:len(images)]}, <x, F'y> = {products[len(images):]}")
    same = {data for _, _, place, data in everyone if place == mine}
    assert len(same) == 1, f"{what}: replicas differ in their bits after {back}"


@pytest.mark.parametrize(("family", "kinds"), FAMILIES,
                         ids=[family.__name__ for family, _ in FAMILIES])
def test_movements_are_adjoint(family: Callable[[np.random.Generator], Movement], kinds: set[Kinds],
                               communicator: Communicator) -> None:
    seen: set[Kinds] = set()
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        owned, needed = family(rng)
        there, back, in_place = patterns(owned, needed)
        seen.add((there.kind, back.kind))
        _adjoint(owned, needed, (there, back, in_place), rng, communicator, f"seed {seed}")
    assert P == 1 or kinds <= seen, f"{family.__name__} should show {kinds}, only {seen} came up"


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_movements_of_random_plans_are_adjoint(seed: int, communicator: Communicator) -> None:
    """All edges of graphs and U-Nets, 2D and 3D, and of layers that only move values, under random
    plans: cut reductions, subsets of ranks, several readers.
    """
    if seed % 4 == 3:
        network, batch = moves(), 5
    else:
        network, batch = (random_unet if seed % 2 else random_graph)(100 * P + seed)
    rng = np.random.default_rng([seed, P])
    configs = {layer.name: random_config(network, layer, P, rng) for layer in network.layers}
    plan = Plan(NetworkSpec(network.name, network.image_shape, network.classes), P, batch, "random",
                configs)
    for into in edges(network, plan).values():
        for e in into:
            _adjoint(e.owned, e.needed, (e.forward, e.backward, e.total), rng, communicator,
                     f"{e.tensor}, {e.owned.config} to {e.needed.config}")


def _added(parts: list[np.ndarray], layout: Layout, communicator: Communicator) -> np.ndarray:
    """Partial sums of one tensor, each in the box of its rank, added."""
    whole = tuple((0, n) for n in layout.shape)
    out = np.zeros(layout.shape)
    for rank, values in enumerate(parts):
        if values.size:
            out[local(layout.box(rank), whole)] += values
    return out


@pytest.mark.parametrize("scatter", [True, False])
def test_sums_of_cut_reductions_are_adjoint(scatter: bool, communicator: Communicator) -> None:
    """Partial sums added (and scattered over channels), and the gradient of the sum given to every
    part (gathered).
    """
    me = communicator.world.rank
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        used, first = some_ranks(rng, P)
        n, k = pairs(used)[int(rng.integers(len(pairs(used))))]
        config = Config(n=n, k=k, first=first, scatter=scatter)
        network = Chain("sums", (5, 4, 3)).add(Conv2d, "conv",
                                               out_channels=int(rng.integers(1, 9))).add(
                                                   GlobalAvgPool, "pool") \
            .add(MeanSquaredError, "loss").build()
        layer, batch = network.by_name["conv"], int(rng.integers(1, 6))
        parts = computed(network, layer, config, batch)
        total = output(network, layer, config, batch)
        drawn = [rng.standard_normal(shape(parts.box(rank))) for rank in range(P)]
        whole = tuple((0, extent) for extent in total.shape)
        summed = _added(drawn, parts, communicator)
        mine = local(total.box(me), whole)
        there = collective(Kind.REDUCE_SCATTER if scatter else Kind.ALLREDUCE,
                           (config.mesh_axes["k"],))
        moved = _all_ways(communicator, there, parts, total, drawn[me])
        for found in moved:
            np.testing.assert_allclose(found, summed[mine], rtol=0, atol=1e-13,
                                       err_msg=f"seed {seed}: {config}")
        y = rng.standard_normal(total.shape)
        back = collective(Kind.ALLGATHER, (config.mesh_axes["k"],)) if scatter else NOTHING
        for given in _all_ways(communicator, back, total, parts, y[mine]):
            np.testing.assert_array_equal(given, y[local(parts.box(me), whole)],
                                          err_msg=f"seed {seed}: back, {config}")
            sides = allgather(communicator.world,
                              (float((moved[0] * y[mine]).sum()) * _first(total, me),
                               float((drawn[me] * given).sum())))
            left, right = (sum(side) for side in zip(*sides, strict=True))
            assert abs(left - right) <= 1e-11 * max(1.0, abs(left)), (
                f"seed {seed}: <Fx, y> = {left}, <x, F'y> = {right}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_reduce_and_broadcast_are_adjoint(seed: int, communicator: Communicator) -> None:
    """For every root, in groups of neighbors or of ranks a stride apart, on some or all ranks."""
    rng, me = np.random.default_rng(seed), communicator.world.rank
    used, first = some_ranks(rng, P)
    n, copies = pairs(used)[int(rng.integers(len(pairs(used))))]
    placement = str(rng.choice(list(PLACEMENTS)))
    layout = Layout(Config(n=n, replicas=copies, first=first, placement=placement),
                    (Axis("n", 7, 7), Axis("c", 3, 3)))
    digits = (layout.config.mesh_axes["replicas"],)
    for root in range(copies if copies > 1 else 0):
        made = [step(collective(kind, digits), layout, layout, root)
                for kind in (Kind.REDUCE, Kind.BROADCAST)]
        either = [variants(replace(s, root=root)) for s in made]
        reduce, broadcast = (ways[int(rng.integers(len(ways)))] for ways in either)
        assert reduce.group is not None
        x = [rng.standard_normal(shape(layout.box(rank))) for rank in range(P)]
        y = [rng.standard_normal(shape(layout.box(rank))) for rank in range(P)]
        members = reduce.group.members(me) if layout.holds(me) else (me,)
        center = members[root] if layout.holds(me) else me
        total, given = move(communicator, reduce, x[me]), move(communicator, broadcast, y[me])
        if me == center:
            np.testing.assert_allclose(total, np.sum([x[m] for m in members], axis=0), rtol=0,
                                       atol=1e-13)
        np.testing.assert_array_equal(given, y[center])
        sides = allgather(communicator.world,
                          (float((total * y[me]).sum()) if me == center else 0.0,
                           float((x[me] * given).sum())))
        left, right = (sum(side) for side in zip(*sides, strict=True))
        assert abs(left - right) <= 1e-12 * max(1.0, abs(left)), (
            f"{layout.config}, root {root}: <Rx, y> = {left}, <x, R'y> = {right}")


@pytest.mark.skipif(P < 3, reason="needs a neighbor's neighbor")
def test_halos_reach_past_the_nearest_neighbor(ranks: World) -> None:
    """Proof that the families above hold the hard cases: far neighbors, and with a grid those
    across corners.
    """
    far = corner = False
    for family in (halo_rows, halo_corners):
        for seed in range(SEEDS):
            owned, needed = family(np.random.default_rng(seed))
            there, _, _ = patterns(owned, needed)
            if there.kind is not Kind.HALO:
                continue
            for rank in range(P):
                place = {a: owned.config.coordinate(a, rank) for a in "hw"}
                for message in exchange(step(there, owned, needed), rank).rounds[:1]:
                    for other in message.recvs:
                        away = [abs(owned.config.coordinate(a, other.peer) - place[a])
                                for a in "hw"]
                        far |= max(away) > 1
                        corner |= min(away) > 0
    assert far
    assert corner or all(min(ab) == 1 for ab in pairs(P))
