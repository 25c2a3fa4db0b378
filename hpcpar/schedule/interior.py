"""Decides which part of a convolution's output needs no halo, and is computed while it travels."""

from __future__ import annotations

from hpcpar.network.receptive_field import Sliding
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import Box, Interval
from hpcpar.plan.layout import Layout


def interior(owned: Layout, needed: Layout, out: Box, rank: int) -> Box:
    """The largest part of `rank`'s output box `out` that reads only input that the rank owns."""
    box = []
    for outputs, inputs, axis in zip(out, owned.box(rank), needed.axes, strict=True):
        slides = isinstance(axis.relation, Sliding) and needed.degree(axis) > 1
        box.append(inner(axis, outputs, inputs) if slides else outputs)
    return tuple(box)


def inner(axis: Axis, outputs: Interval, inputs: Interval) -> Interval:
    """The outputs along an axis whose windows stay inside `inputs`."""
    (lo, hi), needed, extent = outputs, axis.relation.needed, int(axis.extent)
    while lo < hi and needed(lo, hi, extent)[0] < inputs[0]:
        lo += 1
    while hi > lo and needed(lo, hi, extent)[1] > inputs[1]:
        hi -= 1
    return lo, hi


def strips(out: Box, inside: Box) -> list[Box]:
    """`out` without `inside`, as disjoint boxes, axis by axis."""
    if any(stop <= start for start, stop in inside):
        return [out]
    boxes, rest = [], list(out)
    for axis, ((lo, hi), (a, b)) in enumerate(zip(out, inside, strict=True)):
        for piece in ((lo, a), (b, hi)):
            if piece[1] > piece[0]:
                boxes.append((*rest[:axis], piece, *rest[axis + 1:]))
        rest[axis] = (a, b)
    return boxes
