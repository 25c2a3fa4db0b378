"""Index boxes and the only partition rule of the project."""

from __future__ import annotations

import math

Interval = tuple[int, int]
#: One half-open interval per axis.
Box = tuple[Interval, ...]


def block(extent: int, parts: int, index: int, granule: int = 1) -> Interval:
    """Interval of part `index` when `extent` indices are cut into `parts`.

    Part i begins at ``floor(i * extent / parts)``: sizes differ by at most one granule, are never
    negative, and nest: when q divides p, each of q parts is the union of p / q consecutive ones of
    p. That nesting is why a gather over some ranks gives exactly what a coarser configuration
    needs.

    Parameters
    ----------
    granule : int
        Indices that stay together; it must divide `extent`.
    """
    units = extent // granule
    return index * units // parts * granule, (index + 1) * units // parts * granule


def part_of(extent: int, parts: int, position: int, granule: int = 1) -> int:
    """The part that holds `position`: the inverse of `block`."""
    return ((position // granule + 1) * parts - 1) // (extent // granule)


def largest_part(extent: int, parts: int, granule: int = 1) -> int:
    """Size of the largest part."""
    return -(-(extent // granule) // parts) * granule


def items(box: Box) -> int:
    """Number of elements in a box."""
    return math.prod(stop - start for start, stop in box)


def shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def intersect(a: Box, b: Box) -> Box | None:
    """The common box, or None where it is empty."""
    out = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return out if all(stop > start for start, stop in out) else None


def contains(outer: Box, inner: Box) -> bool:
    """True where `inner` is empty or lies in `outer`."""
    return items(inner) == 0 or all(p[0] <= q[0] and q[1] <= p[1]
                                    for p, q in zip(outer, inner, strict=True))


def local(box: Box, origin: Box) -> tuple[slice, ...]:
    """Slices of `box` in the array that holds `origin`."""
    return tuple(slice(b[0] - o[0], b[1] - o[0]) for b, o in zip(box, origin, strict=True))
