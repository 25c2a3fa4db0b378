"""One axis of a tensor that is cut into parts: from parts of a layer's output to intervals of the
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpcpar.network.receptive_field import Groups, Relation, Same
from hpcpar.plan.boxes import Interval, block
from hpcpar.plan.config import Ints

SAME = Same()
#: Arrays of up to so many entries are looked up one by one.
FEW = 128


@dataclass(frozen=True)
class Axis:
    """One axis of a layout: part i of the layer's output axis, and the interval that it needs of
    this tensor's axis.

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
    granule: Ints = 1
    relation: Relation = SAME

    def __hash__(self) -> int:
        known = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = hash((self.name, self.extent, self.out_extent,
                                                  self.granule, self.relation))
        return known

    @cached_property
    def unnamed(self) -> Axis:
        """The same whatever cuts it: rows and columns of a square image are alike."""
        return Axis("", self.extent, self.out_extent, self.granule,
                    self.relation) if self.name else self

    def at(self, entries: Any) -> Axis:
        """Some of several axes in one: all numbers are arrays."""
        relation = type(self.relation)(**{name: values[entries]
                                          for name, values in vars(self.relation).items()})
        return Axis(self.name, self.extent[entries], self.out_extent[entries],
                    self.granule[entries], relation)

    def interval(self, parts: int, index: int) -> Interval:
        """The interval of part `index`; all of an axis that is not cut, even where windows leave
        out its end.
        """
        return (0, int(self.extent)) if parts == 1 else _interval(self, parts, index)


@lru_cache(maxsize=200_000)
def _interval(axis: Axis, parts: int, index: int) -> Interval:
    start, stop = block(int(axis.out_extent), parts, index, axis.granule)
    relation = axis.relation
    if isinstance(relation, Groups) and (parts % relation.groups == 0 or relation.groups % parts
                                         == 0):
        # by group, not by channel: a part without any output still belongs to a group
        if parts >= relation.groups:
            return block(int(axis.extent), relation.groups, index * relation.groups // parts)
        return block(int(axis.extent), parts, index)
    return relation.needed(start, stop, int(axis.extent))


@lru_cache(maxsize=50_000)
def intervals(axis: Axis, parts: int) -> tuple[Any, Any]:
    """Starts and stops of all parts of an axis, as two arrays of `parts` entries."""
    found = np.array([axis.interval(parts, i) for i in range(parts)], np.int64).reshape(parts, 2)
    return found[:, 0], found[:, 1]


def column(axes: Sequence[Axis]) -> Axis:
    """One axis for several that are related alike, with an entry for each."""
    extent, out_extent, granule = np.array([(a.extent, a.out_extent, a.granule) for a in axes],
                                           np.int64).T
    relations = [a.relation for a in axes]
    numbers: dict[str, Any] = {f.name: np.array([getattr(r, f.name) for r in relations], np.int64)
                               for f in fields(relations[0])}
    return Axis("", extent, out_extent, granule, type(relations[0])(**numbers))


def interval_arrays(axis: Axis, parts: Any, index: Any) -> tuple[Any, Any]:
    """`Axis.interval` for arrays of degrees and indices."""
    units = axis.out_extent // axis.granule
    start, stop = index * units // parts * axis.granule, (index + 1) * units // parts * axis.granule
    relation = axis.relation
    if not isinstance(relation, Same):
        start, stop = relation.needed_array(start, stop, axis.extent)
    if isinstance(relation, Groups):
        coarse, fine = relation.groups % parts == 0, parts % relation.groups == 0
        blocks, place = np.where(fine, relation.groups, parts), np.where(fine, index * relation.groups // parts, index)
        start = np.where(coarse | fine, place * axis.extent // blocks, start)
        stop = np.where(coarse | fine, (place + 1) * axis.extent // blocks, stop)
    whole = np.equal(parts, 1)
    return np.where(whole, 0, start), np.where(whole, axis.extent, stop)


def each_part(axis: Axis, parts: Any) -> tuple[Any, Any, Any]:
    """Starts and stops of all parts of several axes laid end to end, and where those of each axis
    begin.

    Parameters
    ----------
    axis, parts : [axes]
        Each axis, and how many parts it is cut into.
    """
    ends = np.cumsum(parts)
    whose = np.repeat(np.arange(len(parts)), parts)
    start, stop = interval_arrays(axis.at(whose), parts[whose],
                                  np.arange(ends[-1]) - (ends - parts)[whose])
    return start, stop, ends - parts


def tabulate(function: Callable[..., Any], axes: tuple[Axis, ...], degree: Ints) -> Any:
    """``function(*axes, degree)`` for every case; it is called once for each degree that occurs.

    What it says of axes must not depend on their names.
    """
    axes = tuple(a.unnamed for a in axes)
    if not isinstance(degree, np.ndarray):
        return np.asarray(function(*axes, degree))
    if degree.size <= FEW:
        each = degree.ravel().tolist()
        known = {v: function(*axes, v) for v in set(each)}
        whole = np.array([known[v] for v in each])
        return whole.reshape(degree.shape + whole.shape[1:])
    values, at = np.unique(degree, return_inverse=True)
    return np.array([function(*axes, int(v)) for v in values])[at.reshape(degree.shape)]


def entry(values: Any, at: tuple[Any, ...], more: int = 0) -> Any:
    """Entries of an array that is broadcast to the shape that `at` indexes; `more` axes follow."""
    shape = values.shape[: values.ndim - more] if isinstance(values, np.ndarray) else ()
    if not shape:
        return values
    here = at[-len(shape):]
    return values[tuple(i if n > 1 else 0 for n, i in zip(shape, here, strict=True)) if 1 in shape
                  else here]
