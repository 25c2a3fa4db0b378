"""Which box of a tensor each rank holds: what it owns of a layer's output, or what it needs of a layer's input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.relation import Full, Groups, Relation, Same, Window
from hpcpar.plan.boxes import Box, Interval, block, intersect, items, largest_part, part_of
from hpcpar.plan.config import Config, Digit, Ints

SAME = Same()
#: Arrays of up to so many entries are looked up one by one.
FEW = 128
#: The axis of a weight that sharded synchronisation cuts over all ranks whose gradients are summed.
SHARD = "shard"


@dataclass(frozen=True)
class Axis:
    """One axis of a layout: part i of the layer's output axis, and the interval that it needs of this tensor's axis.

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
    variants : tuple of Axis
        Of a stack (see `hpcpar.plan.stack`): the axes of several tensors, whose numbers this one has in arrays.
    """

    name: str
    extent: Ints
    out_extent: Ints
    granule: int = 1
    relation: Relation = SAME
    variants: tuple[Axis, ...] = ()

    @property
    def pointwise(self) -> bool:
        """True for a window of a single index."""
        return (self.variants[0] if self.variants else self).relation == Window(1)

    def interval(self, parts: int, index: int) -> Interval:
        """The interval of part `index`; all of an axis that is not cut, even where windows leave out its end."""
        return (0, int(self.extent)) if parts == 1 else _interval(self, parts, index)


@lru_cache(maxsize=200_000)
def _interval(axis: Axis, parts: int, index: int) -> Interval:
    start, stop = block(int(axis.out_extent), parts, index, axis.granule)
    relation = axis.relation
    if isinstance(relation, Groups) and (parts % relation.groups == 0 or relation.groups % parts == 0):
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


def tabulate(function: Callable[..., Any], axes: tuple[Axis, ...], degree: Ints) -> Any:
    """``function(*axes, degree)`` for every case; it is called once for each degree that occurs (and each axis of a stack)."""
    count = max((len(a.variants) for a in axes), default=0)
    if count:
        rows = [tabulate(function, tuple(a.variants[e] if a.variants else a for a in axes), degree) for e in range(count)]
        found = np.stack(rows)
        # the axis of the stack comes before those of the cases, of which a plain number has none
        return found.reshape(count, 1, 1, *found.shape[1:]) if np.ndim(degree) == 0 else found
    if not isinstance(degree, np.ndarray):
        return np.asarray(function(*axes, degree))
    if degree.size <= FEW:
        known = {v: function(*axes, v) for v in set(degree.ravel().tolist())}
        whole = np.array([known[v] for v in degree.ravel().tolist()])
        return whole.reshape(degree.shape + whole.shape[1:])
    values, at = np.unique(degree, return_inverse=True)
    return np.array([function(*axes, int(v)) for v in values])[at.reshape(degree.shape)]


@dataclass(frozen=True)
class Layout:
    """Boxes of one tensor over the ranks of a configuration.

    Attributes
    ----------
    summed : bool
        The tensor is the output of a reduction that the configuration cuts (k), after the partial sums were added: its channels are cut
        by c and k together, or all k ranks own alike.
    partial : tuple of str
        Axes of the configuration that do not cut the tensor but part sums of it: ranks along them hold different summands.
    """

    config: Config
    axes: tuple[Axis, ...]
    summed: bool = False
    partial: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[Any, ...]:
        """The global tensor's shape."""
        return tuple(a.extent for a in self.axes)

    @cached_property
    def digits(self) -> dict[str, Digit]:
        """The coordinates of a rank that cut this tensor, by axis."""
        names = [a.name for a in self.axes]
        out = {name: digit for name, digit in self.config.digits.items() if name in names}
        if self.summed and self.config.scatter:
            k = self.config.digits["k"]
            out["c"] = Digit(k.stride, self.config.c * k.size)
        if SHARD in names:
            out[SHARD] = self._shard()
        return out

    def _shard(self) -> Digit:
        """All sample and image parts as one coordinate."""
        digits = [self.config.digits[a] for a in ("n", "d", "h", "w")]
        size = math.prod(d.size for d in digits)
        if self.config.placement == "inner":
            return Digit(digits[-1].stride, size)
        return Digit(digits[0].stride if np.all(np.equal(digits[0].size, size)) else digits[-1].stride, size)

    @cached_property
    def _uncut(self) -> dict[str, Digit]:
        merged = ("k",) if self.summed and self.config.scatter else ("n", "d", "h", "w") if SHARD in self.digits else ()
        return {name: d for name, d in self.config.digits.items() if name not in self.digits and name not in merged}

    @property
    def spare(self) -> tuple[Digit, ...]:
        """The coordinates that do not cut this tensor: ranks that differ only there hold the same box."""
        return tuple(self._uncut.values())

    @cached_property
    def copies(self) -> tuple[Digit, ...]:
        """Those of them along which ranks hold the same values too."""
        return tuple(d for name, d in self._uncut.items() if name not in self.partial)

    def holds(self, rank: int) -> bool:
        """True where the layer lives on `rank`."""
        return bool(self.config.first <= rank < self.config.first + self.config.ranks)

    def degree(self, axis: Axis) -> Any:
        digit = self.digits.get(axis.name)
        return 1 if digit is None else digit.size

    def coordinates(self, rank: int) -> tuple[int, ...]:
        at = rank - self.config.first
        return tuple(int(self.digits[a.name].of(at)) if a.name in self.digits else 0 for a in self.axes)

    def replica(self, rank: int) -> int:
        """Which of the ranks with the same values `rank` is; any number where it holds none."""
        at, out = rank - self.config.first, 0
        for d in self.copies:
            out = out * d.size + d.of(at)
        return int(out)

    @property
    def replicas(self) -> Any:
        """Ranks that hold the same values."""
        return math.prod(d.size for d in self.copies)

    def box(self, rank: int) -> Box:
        """The box of `rank`; empty where the layer does not live."""
        if not self.holds(rank):
            return tuple((0, 0) for _ in self.axes)
        return tuple(a.interval(self.degree(a), i) for a, i in zip(self.axes, self.coordinates(rank), strict=True))

    def items(self, rank: int) -> int:
        return items(self.box(rank))

    @cached_property
    def largest(self) -> tuple[Any, ...]:
        """Largest extent over ranks, per axis (attained together: parts are cut independently)."""
        return tuple(_largest(a, self.degree(a)) for a in self.axes)

    @property
    def largest_items(self) -> Any:
        return math.prod(self.largest)

    def ranks_touching(self, box: Box) -> Iterator[int]:
        """Every rank whose box meets `box`, in order of rank."""
        choices: dict[str, Sequence[int]] = {}
        for a, want in zip(self.axes, box, strict=True):
            degree = self.degree(a)
            near: Sequence[int] = range(degree)
            if isinstance(a.relation, Same) and want[1] > want[0]:
                near = range(part_of(a.extent, degree, want[0], a.granule), part_of(a.extent, degree, want[1] - 1, a.granule) + 1)
            choices[a.name] = [i for i in near if intersect((a.interval(degree, i),), (want,)) is not None]
        places = [(digit.stride, choices[name]) for name, digit in self.digits.items()]
        places += [(d.stride, range(d.size)) for d in self.spare]
        if not all(chosen for name, chosen in choices.items() if name not in self.digits):
            return
        ranges, strides = [p[1] for p in places], [p[0] for p in places]
        yield from sorted(self.config.first + sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*ranges))


def _largest(axis: Axis, degree: Ints) -> Any:
    if isinstance(axis.relation, Full) or (isinstance(degree, int) and degree == 1):
        return axis.extent
    if isinstance(axis.relation, Same):
        return largest_part(axis.extent, degree, axis.granule)
    return tabulate(_widest, (axis,), degree)


@lru_cache(maxsize=50_000)
def _widest(axis: Axis, parts: int) -> int:
    start, stop = intervals(axis, parts)
    return int((stop - start).max())


def _axes(shape: tuple[int, ...], batch: Ints, granule: int) -> tuple[Axis, ...]:
    extents = (batch, *shape)
    return tuple(Axis(a, e, e, granule if a == "c" else 1) for a, e in zip(axes_of(shape), extents, strict=True))


def owned(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank owns of the layer's output."""
    return Layout(config, _axes(network.shapes[layer.name], batch, network.granules[layer.name]), summed=True)


def partial(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank computes of the layer's output, before partial sums (k) are added."""
    return Layout(config, _axes(network.shapes[layer.name], batch, network.granules[layer.name]), partial=("k",))


def needed(network: Network, layer: Layer, config: Config, batch: Ints, which: int = 0) -> Layout:
    """What each rank needs of the layer's input number `which` to compute the part of the output that it computes."""
    x = network.input_shapes(layer)[which]
    out = dict(zip(axes_of(network.shapes[layer.name]), (batch, *network.shapes[layer.name]), strict=True))
    granule = network.granules[layer.name]
    axes: list[Axis] = []
    parts: tuple[str, ...] = ()
    for name, extent in zip(axes_of(x), (batch, *x), strict=True):
        relation = layer.relation(name, x, which)
        if name == "c" and layer.products and isinstance(relation, Full):
            # a sum over input channels: cut by k; parts of the output channels each add to its gradient
            parts = ("c",)
            axes.append(Axis("k", extent, extent, network.granules[layer.inputs[which]]))
        elif name in out:
            axes.append(Axis(name, extent, out[name], granule if name == "c" else 1, relation))
        else:  # an axis that the layer does away with
            axes.append(Axis(f"all {name}", extent, 1, 1, relation))
    return Layout(config, tuple(axes), partial=parts)


def parameters(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank owns of the layer's weights and biases: rows of output channels, each with its inputs and its bias."""
    return Layout(config, _parameter_axes(network, layer, "k"))


def shards(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank updates of the weights under sharded synchronisation: its rows' entries, cut over those that sum gradients."""
    return Layout(config, _parameter_axes(network, layer, SHARD))


def _parameter_axes(network: Network, layer: Layer, columns: str) -> tuple[Axis, ...]:
    x = network.input_shape(layer)
    rows = layer.weight_shape(x)[0]
    per_row = layer.parameters(x) // rows
    return (Axis("c", rows, rows), Axis(columns, per_row, per_row))
