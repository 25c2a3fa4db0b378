"""One axis of a tensor that is cut into parts: from parts of a layer's output to intervals of the
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.network.receptive_field import Groups, Relation, Same
from hpcpar.plan.boxes import Interval, block
from hpcpar.plan.config import Ints

SAME = Same()


@dataclass(frozen=True)
class Axis:
    """One axis of a layout: which interval of a tensor's axis belongs to part i of a layer's output.

    Attributes
    ----------
    name : str
        Axis of the configuration that cuts it.
    extent : int
        Size of this tensor's axis.
    out_extent, granule : int
        Size and indivisible unit of the output axis that is cut.
    relation : Relation
        From output to this tensor; `Same` where the tensor is the output itself.
    """

    name: str
    extent: Ints
    out_extent: Ints
    granule: int = 1
    relation: Relation = SAME

    def interval(self, parts: int, index: int) -> Interval:
        """The interval of part `index`: the whole axis if it is not cut, even where windows leave
        out its end.
        """
        return (0, int(self.extent)) if parts == 1 else _interval(self, parts, index)


@lru_cache(maxsize=200_000)
def _interval(axis: Axis, parts: int, index: int) -> Interval:
    start, stop = block(int(axis.out_extent), parts, index, axis.granule)
    relation = axis.relation
    if isinstance(relation, Groups) and (
            parts % relation.groups == 0 or relation.groups % parts == 0):
        # by group, not by channel: a part without any output still belongs to a group
        if parts >= relation.groups:
            return block(int(axis.extent), relation.groups, index * relation.groups // parts)
        return block(int(axis.extent), parts, index)
    return relation.needed(start, stop, int(axis.extent))


def intervals(axis: Axis, parts: Any, index: Any) -> tuple[Any, Any]:
    """Starts and stops, as `Axis.interval` gives them, for arrays of degrees and indices."""
    units = axis.out_extent // axis.granule
    start = index * units // parts * axis.granule
    stop = (index + 1) * units // parts * axis.granule
    relation = axis.relation
    if not isinstance(relation, Same):
        start, stop = relation.needed_array(start, stop, axis.extent)
    if isinstance(relation, Groups):
        groups = relation.groups
        fine = parts % groups == 0
        whole_groups = fine | (groups % parts == 0)
        blocks = np.where(fine, groups, parts)
        place = np.where(fine, index * groups // parts, index)
        start = np.where(whole_groups, place * axis.extent // blocks, start)
        stop = np.where(whole_groups, (place + 1) * axis.extent // blocks, stop)
    uncut = np.equal(parts, 1)
    return np.where(uncut, 0, start), np.where(uncut, axis.extent, stop)


def all_intervals(axis: Axis, parts: int) -> tuple[Any, Any]:
    """Starts and stops of all parts of an axis: two arrays of `parts` entries."""
    return intervals(axis, parts, np.arange(parts))


def tabulate(function: Callable[..., Any], axes: tuple[Axis, ...], degree: Ints) -> Any:
    """``function(*axes, degree)`` for every case; called once for each degree that occurs."""
    if not isinstance(degree, np.ndarray):
        return np.asarray(function(*axes, degree))
    values, at = np.unique(degree, return_inverse=True)
    table = np.array([function(*axes, int(value)) for value in values])
    return table[at.reshape(degree.shape)]


def entry(values: Any, at: tuple[Any, ...]) -> Any:
    """Entries of an array that is broadcast to the shape that `at` indexes."""
    shape = values.shape if isinstance(values, np.ndarray) else ()
    if not shape:
        return values
    here = at[-len(shape):]
    return values[tuple(i if n > 1 else 0 for n, i in zip(shape, here, strict=True))]
