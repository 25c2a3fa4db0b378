"""Index boxes, and `block`, the rule that cuts every axis of every tensor into parts."""

from __future__ import annotations

import math

from hpcpar.plan.config import Ints

Interval = tuple[int, int]
#: One half-open interval per axis.
Box = tuple[Interval, ...]


def block(extent: int, parts: int, index: int, granule: int = 1) -> Interval:
    """Interval of part `index` when `extent` indices are cut into `parts`.

    Part i starts at ``floor(i * extent / parts)``. Sizes differ by at most one granule. Parts nest:
    if q divides p, each of q parts is the union of p / q consecutive parts out of p. Therefore a
    gather over some ranks yields exactly one part of a coarser configuration.

    Parameters
    ----------
    granule : int
        Number of consecutive indices that stay together; a divisor of `extent`.
    """
    units = extent // granule
    return index * units // parts * granule, (index + 1) * units // parts * granule


def part_of(extent: int, parts: int, position: int, granule: int = 1) -> int:
    """The part that contains `position`: the inverse of `block`."""
    return ((position // granule + 1) * parts - 1) // (extent // granule)


def largest_part(extent: Ints, parts: Ints, granule: int = 1) -> Ints:
    """Size of the largest part."""
    return -(-(extent // granule) // parts) * granule


def items(box: Box) -> int:
    """Number of elements in a box."""
    return math.prod(stop - start for start, stop in box)


def whole_box(shape: tuple[int, ...]) -> Box:
    """The box of a whole tensor."""
    return tuple((0, extent) for extent in shape)


def shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def intersect(a: Box, b: Box) -> Box | None:
    """The common box; None if it is empty."""
    common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return common if all(stop > start for start, stop in common) else None


def shared(a: Interval, b: Interval, extent: int) -> list[tuple[Interval, Interval]]:
    """Overlaps of two intervals of an axis, as pairs in the indices of `a` and of `b`.

    The indices differ if an interval wraps around the axis; see `Periodic`.
    """
    turns = (0,) if min(a[0], b[0]) >= 0 and max(a[1], b[1]) <= extent else (-extent, 0, extent)
    common = [(max(a[0] + turn, b[0]), min(a[1] + turn, b[1]), turn) for turn in turns]
    return [((lo - turn, hi - turn), (lo, hi)) for lo, hi, turn in common if hi > lo]


def contains(outer: Box, inner: Box) -> bool:
    """Whether `inner` lies in `outer` or is empty."""
    return items(inner) == 0 or all(p[0] <= q[0] and q[1] <= p[1]
                                    for p, q in zip(outer, inner, strict=True))


def local(box: Box, origin: Box) -> tuple[slice[int, int, int], ...]:
    """Slices that select `box` in the array of box `origin`."""
    return tuple(slice(b[0] - o[0], b[1] - o[0]) for b, o in zip(box, origin, strict=True))
