"""The part of a convolution's output that needs no halo: computed while the halo travels."""

from __future__ import annotations

from hpcpar.network.receptive_field import Sliding
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import Box, Interval
from hpcpar.plan.layout import Layout


def interior(have: Layout, want: Layout, out: Box, rank: int) -> Box:
    """The largest box of `rank`'s outputs that reads only what the rank owns of the input.

    Parameters
    ----------
    have, want : Layout
        Owned and needed boxes of the layer's input.
    out : Box
        The rank's box of the layer's output (same axis order).
    """
    mine = have.box(rank)
    box = []
    for (lo, hi), own, a in zip(out, mine, want.axes, strict=True):
        if isinstance(a.relation, Sliding) and want.degree(a) > 1:
            box.append(inner(a, (lo, hi), own))
        else:
            box.append((lo, hi))
    return tuple(box)


def inner(axis: Axis, out: Interval, own: Interval) -> Interval:
    """The outputs of `out` along an axis that read only what lies in `own`."""
    (lo, hi), needed, extent = out, axis.relation.needed, int(axis.extent)
    while lo < hi and needed(lo, hi, extent)[0] < own[0]:
        lo += 1
    while hi > lo and needed(lo, hi, extent)[1] > own[1]:
        hi -= 1
    return lo, hi


def strips(out: Box, inside: Box) -> list[Box]:
    """`out` without `inside`, as disjoint boxes (axis by axis)."""
    if any(stop <= start for start, stop in inside):
        return [out]
    left, rest = [], list(out)
    for axis, ((lo, hi), (a, b)) in enumerate(zip(out, inside, strict=True)):
        for piece in ((lo, a), (b, hi)):
            if piece[1] > piece[0]:
                left.append((*rest[:axis], piece, *rest[axis + 1:]))
        rest[axis] = (a, b)
    return left
