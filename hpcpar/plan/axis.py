"""One axis of a tensor: the interval for each part of a layer's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.receptive_field import Groups, Relation, Same
from hpcpar.plan.boxes import Interval, block
from hpcpar.plan.config import Ints

SAME = Same()
#: Shifts, in lengths of the axis, under which intervals that wrap around can overlap (`Periodic`).
TURNS = np.array([[-1], [0], [1]])
IntArray: TypeAlias = NDArray[np.int64]
Value = TypeVar("Value", np.int64, np.float64, np.bool_)


@dataclass(frozen=True)
class Axis:
    """One axis of a layout: the interval for part i of a layer's output.

    Attributes
    ----------
    name : str
        Axis of the configuration that cuts this axis.
    extent : int
        Size of this tensor's axis.
    out_extent, granule : int
        Size and indivisible unit of the layer's output axis, where the cuts are made.
    relation : Relation
        Maps intervals of the output axis to this axis; `Same` for the output axis itself.
    """

    name: str
    extent: Ints
    out_extent: Ints
    granule: int = 1
    relation: Relation = SAME

    @lru_cache(maxsize=200_000)  # noqa: B019 - axes are values, equal ones share an entry
    def interval(self, parts: int, index: int) -> Interval:
        """The interval of part `index`.

        An uncut axis is whole, even if the layer's windows do not reach its end.
        """
        extent, relation = int(self.extent), self.relation
        if parts == 1:
            return 0, extent
        if isinstance(relation, Groups) and (
                parts % relation.groups == 0 or relation.groups % parts == 0):
            # cut by group, not by channel, because a part without outputs still belongs to a group
            if parts >= relation.groups:
                return block(extent, relation.groups, index * relation.groups // parts)
            return block(extent, parts, index)
        if isinstance(relation, Groups) and relation.mixed_by(parts):
            return 0, extent
        start, stop = block(int(self.out_extent), parts, index, self.granule)
        return relation.needed(start, stop, extent)


def intervals(axis: Axis, parts: Ints, index: Ints) -> tuple[IntArray, IntArray]:
    """`Axis.interval` for arrays of parts and indices: starts and stops."""
    if isinstance(axis.relation, Same):  # as in `block`
        units = axis.out_extent // axis.granule
        return (np.asarray(index * units // parts * axis.granule),
                np.asarray((index + 1) * units // parts * axis.granule))
    if not isinstance(parts, np.ndarray):
        start, stop = all_intervals(axis, int(parts))
        return start[index], stop[index]
    degrees, which = np.unique(parts, return_inverse=True)
    first = np.cumsum([0, *degrees[:-1]])[which.reshape(parts.shape)]
    table = np.concatenate([all_intervals(axis, degree) for degree in degrees.tolist()], axis=1)
    start, stop = table[:, first + index]
    return start, stop


@lru_cache(maxsize=50_000)
def all_intervals(axis: Axis, parts: int) -> IntArray:
    """Starts and stops of all parts of an axis: [2, parts]."""
    return np.array([axis.interval(parts, index) for index in range(parts)], np.int64).T


def tabulate(function: Callable[[int], float | IntArray], degree: Ints,
             dtype: type[Value]) -> NDArray[Value]:
    """``function(degree)`` for every case, called once per distinct degree.

    Returns
    -------
    ndarray
        Shape of `degree` followed by the shape of the function's value.
    """
    if not isinstance(degree, np.ndarray):
        return np.asarray(function(degree), dtype)
    values, positions = np.unique(degree, return_inverse=True)
    table = np.array([function(value) for value in values.tolist()], dtype)
    return table[positions.reshape(degree.shape)]
