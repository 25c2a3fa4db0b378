"""The block rule, boxes, and which ranks hold what."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.network.receptive_field import Periodic, Same, Window
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import (
    Box,
    block,
    contains,
    intersect,
    items,
    largest_part,
    local,
    part_of,
    shape,
    shared,
)
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.interior import strips

FIXED = settings(max_examples=150)

UNITS, PARTS, GRANULES = st.integers(0, 60), st.integers(1, 40), st.integers(1, 7)


def boxes(axes: int = 3, extent: int = 6) -> st.SearchStrategy[Box]:
    interval = st.tuples(st.integers(0, extent),
                         st.integers(0, extent)).map(lambda x: (min(x), max(x)))
    return st.tuples(*[interval] * axes)


def mask(box: Box, extent: int = 6) -> np.ndarray:
    """True at the box's elements."""
    out = np.zeros((extent,) * len(box), bool)
    out[tuple(slice(*i) for i in box)] = True
    return out


@FIXED
@given(UNITS, PARTS, GRANULES)
def test_blocks_cover_in_order(units: int, parts: int, granule: int) -> None:
    blocks = [block(units * granule, parts, i, granule) for i in range(parts)]
    assert blocks[0][0] == 0 and blocks[-1][1] == units * granule
    assert all(a[1] == b[0] for a, b in itertools.pairwise(blocks))


@FIXED
@given(UNITS, PARTS, GRANULES)
def test_sizes_differ_by_one_granule_at_most(units: int, parts: int, granule: int) -> None:
    sizes = [stop - start
             for start, stop in (block(units * granule, parts, i, granule) for i in range(parts))]
    assert min(sizes) >= 0 and all(n % granule == 0 for n in sizes)
    assert max(sizes) - min(sizes) <= granule
    assert max(sizes) == largest_part(units * granule, parts, granule)


@FIXED
@given(UNITS, st.integers(1, 10), st.integers(1, 6), GRANULES)
def test_blocks_nest(units: int, coarse: int, ratio: int, granule: int) -> None:
    extent = units * granule
    for i in range(coarse):
        fine = [block(extent, coarse * ratio, i * ratio + j, granule) for j in range(ratio)]
        assert (fine[0][0], fine[-1][1]) == block(extent, coarse, i, granule)


@FIXED
@given(UNITS, PARTS, GRANULES)
def test_part_of_inverts_block(units: int, parts: int, granule: int) -> None:
    for i in range(parts):
        for position in range(*block(units * granule, parts, i, granule)):
            assert part_of(units * granule, parts, position, granule) == i


@FIXED
@given(boxes(), boxes())
def test_intersection(a: Box, b: Box) -> None:
    common = intersect(a, b)
    expected = mask(a) & mask(b)
    assert (common is None) == (not expected.any())
    if common is not None:
        np.testing.assert_array_equal(mask(common), expected)
    assert contains(a, b) == bool((mask(a) >= mask(b)).all())
    assert items(a) == mask(a).sum()


@FIXED
@given(st.integers(1, 6), st.data())
def test_periodic_intervals_share_indices_past_the_end(extent: int, data: st.DataObject) -> None:
    start, first = data.draw(st.integers(0, extent)), data.draw(st.integers(-extent, 2 * extent))
    inside = start, data.draw(st.integers(start, extent))
    around = first, data.draw(st.integers(first, 2 * extent))
    pairs = {(i, j) for i in range(*inside) for j in range(*around) if (j - i) % extent == 0}
    found = [pair for a, b in shared(inside, around, extent)
             for pair in zip(range(*a), range(*b), strict=True)]
    assert len(found) == len(pairs) and set(found) == pairs
    assert shared(around, inside, extent) == [
        (b, a) for a, b in reversed(shared(inside, around, extent))]


@FIXED
@given(boxes(), boxes())
def test_local_finds_the_same_elements(origin: Box, other: Box) -> None:
    box = intersect(origin, other)
    if box is None:
        return
    whole = np.arange(6**3).reshape(6, 6, 6)
    held = whole[tuple(slice(*i) for i in origin)]
    assert held.shape == shape(origin)
    np.testing.assert_array_equal(held[local(box, origin)], whole[tuple(slice(*i) for i in box)])


@FIXED
@given(boxes(), boxes())
def test_strips_are_the_box_without_its_interior(out: Box, other: Box) -> None:
    inside = intersect(out, other)
    empty = tuple((start, start) for start, _ in out)
    rest = strips(out, inside or empty)
    covered = sum((mask(s).astype(int) for s in rest), np.zeros((6, 6, 6), int))
    np.testing.assert_array_equal(covered, (mask(out) & ~mask(inside or empty)).astype(int))


CONFIGS = st.builds(Config, n=st.integers(1, 3), c=st.integers(1, 3), h=st.integers(1, 3),
                    w=st.integers(1, 2), replicas=st.integers(1, 3))
EXTENTS = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))


@FIXED
@given(CONFIGS, EXTENTS)
def test_owned_boxes_hold_every_element_once_per_replica(
    config: Config, extents: tuple[int, ...]
) -> None:
    layout = Layout(config, tuple(Axis(a, e, e) for a, e in zip("nchw", extents, strict=True)))
    count = np.zeros(extents, int)
    for rank in range(config.ranks):
        count[tuple(slice(*i) for i in layout.box(rank))] += 1
    assert (count == config.replicas).all()
    assert layout.largest == tuple(
        max(s) for s in zip(*(shape(layout.box(r)) for r in range(config.ranks)), strict=True)
    )


@FIXED
@given(CONFIGS, EXTENTS, boxes(4), st.booleans())
def test_ranks_touching(config: Config, extents: tuple[int, ...], box: Box, windows: bool) -> None:
    relations = [Same(), Same(), *([Window(3, 1, 1), Window(2)] if windows else [Same(), Same()])]
    axes = [Axis(a, e, e, 1, r) for a, e, r in zip("nchw", extents, relations, strict=True)]
    if windows:
        axes[3] = Axis("w", extents[3] + 1, extents[3], 1, relations[3])
    layout = Layout(config, tuple(axes))
    inside = intersect(box, tuple((0, n) for n in layout.shape))
    if inside is not None:
        expected = [r for r in range(config.ranks) if intersect(layout.box(r), inside) is not None]
        assert list(layout.ranks_touching(inside)) == expected


@FIXED
@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_ranks_touching_around_the_ends(parts: int, extent: int, data: st.DataObject) -> None:
    before, after = (data.draw(st.integers(0, extent)) for _ in range(2))
    axes = Axis("h", extent, extent), Axis("h", extent, before + extent + after, 1,
                                           Periodic(before))
    owned, needed = (Layout(Config(h=parts), (axis,)) for axis in axes)
    for mine, theirs in ((owned, needed), (needed, owned)):
        for rank in range(parts):
            places = {i % extent for i in range(*mine.box(rank)[0])}
            assert list(theirs.ranks_touching(mine.box(rank))) == [
                r for r in range(parts) if places & {i % extent for i in range(*theirs.box(r)[0])}]


@FIXED
@given(CONFIGS)
def test_coordinates_number_the_ranks(config: Config) -> None:
    """Every rank has coordinates of its own; neighboring ranks share replicas and channels."""
    at = [tuple(config.coordinate(a, r) for a in ("n", "h", "w", "c", "replicas"))
          for r in range(config.ranks)]
    assert at == list(itertools.product(*(range(getattr(config, a))
                                          for a in ("n", "h", "w", "c", "replicas"))))
