"""Which box of a tensor each rank holds: what it owns of a layer's output, or what it needs of a
layer's input.
"""

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
from hpcpar.network.receptive_field import Columns, Full, Same
from hpcpar.plan.axis import Axis as Axis
from hpcpar.plan.axis import intervals as intervals
from hpcpar.plan.axis import tabulate as tabulate
from hpcpar.plan.boxes import Box, intersect, items, largest_part, part_of
from hpcpar.plan.config import Config, Digit, Ints, Merged

#: The axis of a weight that sharded synchronisation cuts over all ranks whose gradients are summed.
SHARD = "shard"

@dataclass(frozen=True, eq=False)
class Ways:
    """The different ways in which the configurations of a family cut an axis.

    Attributes
    ----------
    columns : array of int
        [3, ways]: stride and size of the coordinate, and the ranks that the layer lives on.
    where : array of int
        For each configuration its place among the ways.
    """

    columns: Any
    where: Any

    def __len__(self) -> int:
        return self.columns.shape[1]


@dataclass(frozen=True)
class Layout:
    """Boxes of one tensor over the ranks of a configuration.

    Attributes
    ----------
    summed : bool
        The tensor is the output of a reduction that the configuration cuts (k), after the partial
        sums were added: its channels are cut by c and k together, or all k ranks own alike.
    partial : tuple of str
        Axes of the configuration that do not cut the tensor but part sums of it: ranks along them
        hold different summands.
    """

    config: Config
    axes: tuple[Axis, ...]
    summed: bool = False
    partial: tuple[str, ...] = ()

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What others worked out about it and another layout, which is kept with it."""
        return {}

    @property
    def shape(self) -> tuple[Any, ...]:
        """The global tensor's shape."""
        return tuple(a.extent for a in self.axes)

    def ways(self, axis: Axis, cases: int | None = None) -> Ways:
        """The ways in which a family's configurations cut an axis; axes that are not cut are alike,
        channels of a sum are cut by k too.

        Parameters
        ----------
        cases : int, optional
            An entry for each of so many, instead of the different ways.
        """
        digit = self.digits.get(axis.name)
        memo, key = self.config.memo, ("ways", axis.name if digit is not None else "",
                                       self.summed and axis.name == "c", cases)
        if key not in memo:
            stride, size = (1, 1) if digit is None else (digit.stride, digit.size)
            memo[key] = _ways(stride, size, self.config.ranks) if cases is None else _each(stride, size, self.config.ranks, cases)
        return memo[key]

    @cached_property
    def cutting(self) -> Any:
        """Equal for layouts whose axes are cut and related alike, whatever their extents."""
        axes = tuple((a.name, type(a.relation), getattr(a.relation, "groups", 0))
                     for a in self.axes)
        return (axes, self.summed, self.partial)

    def of_cutting(self, what: str, find: Callable[[Layout], Any]) -> Any:
        """Something that is the same for all layouts under this configuration that are cut alike.
        """
        memo, key = self.config.memo, (what, self.cutting)
        if key not in memo:
            memo[key] = find(self)
        return memo[key]

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
        digits = tuple(self.config.digits[a] for a in ("n", "d", "h", "w"))
        return Merged(digits[-1].stride, math.prod(d.size for d in digits), digits)

    @cached_property
    def _uncut(self) -> dict[str, Digit]:
        merged = ("k",) if self.summed and self.config.scatter else ("n", "d", "h", "w") if SHARD in self.digits else ()
        return {name: d for name, d in self.config.digits.items() if name not in self.digits
                and name not in merged}

    @property
    def spare(self) -> tuple[Digit, ...]:
        """The coordinates that do not cut this tensor: ranks that differ only there hold the same
        box.
        """
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
        return tuple(int(self.digits[a.name].of(at)) if a.name in self.digits else 0
                     for a in self.axes)

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
        return tuple(a.interval(self.degree(a), i)
                     for a, i in zip(self.axes, self.coordinates(rank), strict=True))

    def items(self, rank: int) -> int:
        return items(self.box(rank))

    @cached_property
    def largest(self) -> tuple[Any, ...]:
        """Largest extent over ranks, per axis (attained together: parts are cut independently)."""
        return tuple(_largest(a, self.degree(a)) for a in self.axes)

    @cached_property
    def largest_items(self) -> Any:
        return math.prod(self.largest)

    def ranks_touching(self, box: Box) -> Iterator[int]:
        """Every rank whose box meets `box`, in order of rank."""
        choices: dict[str, Sequence[int]] = {}
        for a, want in zip(self.axes, box, strict=True):
            degree = self.degree(a)
            near: Sequence[int] = range(degree)
            if isinstance(a.relation, Same) and want[1] > want[0]:
                near = range(part_of(a.extent, degree, want[0], a.granule),
                             part_of(a.extent, degree, want[1] - 1, a.granule) + 1)
            choices[a.name] = [i for i in near if intersect((a.interval(degree, i),),
                                                            (want,)) is not None]
        places = [(digit.stride, choices[name]) for name, digit in self.digits.items()]
        places += [(d.stride, range(d.size)) for d in self.spare]
        if not all(chosen for name, chosen in choices.items() if name not in self.digits):
            return
        ranges, strides = [p[1] for p in places], [p[0] for p in places]
        yield from sorted(self.config.first + sum(i * s for i, s in zip(at, strides, strict=True))
                          for at in itertools.product(*ranges))


def _ways(stride: Any, size: Any, ranks: Any) -> Ways:
    columns = (v.ravel().tolist() if isinstance(v, np.ndarray) else itertools.repeat(v, ranks.size)
               for v in (stride, size, ranks))
    known: dict[tuple[int, ...], int] = {}
    # the stride of a single part means nothing
    where = [known.setdefault((stride if size > 1 else 1, size, lives), len(known))
             for stride, size, lives in zip(*columns, strict=True)]
    return Ways(np.array(list(known), np.int64).T, np.array(where, np.intp))


def _each(stride: Any, size: Any, ranks: Any, cases: int) -> Ways:
    columns = np.empty((3, cases), np.int64)
    columns[0], columns[1], columns[2] = stride, size, ranks
    return Ways(columns, np.arange(cases))


def _largest(axis: Axis, degree: Ints) -> Any:
    if isinstance(axis.relation, Full) or (isinstance(degree, int) and degree == 1):
        return axis.extent
    if isinstance(axis.relation, Same):
        return largest_part(axis.extent, degree, axis.granule)
    if isinstance(axis.relation, Columns):
        return largest_part(axis.out_extent, degree,
                            axis.granule) * axis.relation.size + axis.relation.bias
    return tabulate(_widest, (axis,), degree)


@lru_cache(maxsize=50_000)
def _widest(axis: Axis, parts: int) -> int:
    start, stop = intervals(axis, parts)
    return int((stop - start).max())


def _layout(config: Config, axes: tuple[Axis, ...], partial: tuple[str, ...] = ()) -> Layout:
    """A layout; of a configuration that many layers share the same for the same axes, which it
    keeps.
    """
    if not config.shared:
        return Layout(config, axes, partial=partial)
    return config.remembered((id(axes), partial), lambda: Layout(config, axes, partial=partial))


def _known(network: Network, what: str, layer: Layer, work_out: Callable[[], tuple[Axis, ...]],
           *more: Any) -> tuple[Axis, ...]:
    """Axes that follow from a layer and some numbers, worked out once for layers that are alike;
    equal ones are the same object.
    """
    key = (what, network.signatures[layer.name], *more)
    if key not in network.memo:
        axes = work_out()
        network.memo[key] = network.memo.setdefault(axes, axes)
    return network.memo[key]


def _output(config: Config, shape: tuple[int, ...], batch: Ints, granule: int, summed: bool,
            partial: tuple[str, ...]) -> Layout:
    """A layout of a layer's output."""
    if not config.shared or isinstance(batch, np.ndarray):
        return Layout(config, _axes(shape, batch, granule), summed, partial)
    return config.remembered((shape, batch, granule, summed),
                             lambda: Layout(config, _axes(shape, batch, granule), summed, partial))


def _axes(shape: tuple[int, ...], batch: Ints, granule: int) -> tuple[Axis, ...]:
    extents = (batch, *shape)
    return tuple(Axis(a, e, e, granule if a == "c" else 1) for a, e in zip(axes_of(shape), extents, strict=True))


def owned(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank owns of the layer's output."""
    return _output(config, network.shapes[layer.name], batch, network.granules[layer.name], True,
                   ())


def partial(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank computes of the layer's output, before partial sums (k) are added."""
    return _output(config, network.shapes[layer.name], batch, network.granules[layer.name], False,
                   ("k",))


def needed(network: Network, layer: Layer, config: Config, batch: Ints, which: int = 0) -> Layout:
    """What each rank needs of the layer's input number `which` to compute the part of the output
    that it computes.
    """

    def work_out() -> tuple[Axis, ...]:
        return _needed(network, layer, batch, which)

    axes = work_out() if isinstance(batch, np.ndarray) else _known(network, "needed", layer, work_out, batch, which)
    # parts of the output channels each add to the gradient of a sum over input channels
    return _layout(config, axes, ("c",) if any(axis.name == "k" for axis in axes) else ())


def _needed(network: Network, layer: Layer, batch: Ints, which: int) -> tuple[Axis, ...]:
    x = network.input_shapes(layer)[which]
    out = dict(zip(axes_of(network.shapes[layer.name]), (batch, *network.shapes[layer.name]),
                   strict=True))
    granule = network.granules[layer.name]
    axes: list[Axis] = []
    for name, extent in zip(axes_of(x), (batch, *x), strict=True):
        relation = layer.relation(name, x, which)
        if name == "c" and layer.products and isinstance(relation, Full):
            axes.append(Axis("k", extent, extent, network.granules[layer.inputs[which]]))
        elif name in out:
            axes.append(Axis(name, extent, out[name], granule if name == "c" else 1, relation))
        else:  # an axis that the layer does away with
            axes.append(Axis(f"all {name}", extent, 1, 1, relation))
    return tuple(axes)


def parameters(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank owns of the layer's weights and biases: rows of output channels, each with its
    inputs and its bias.

    Parts of a cut reduction (k) hold the weights of their inputs, and all of them the bias.
    """
    return _layout(config,
                   _known(network, "parameters", layer, lambda: _parameters(network, layer)))


def _parameters(network: Network, layer: Layer) -> tuple[Axis, ...]:
    rows, per_row = _rows(network, layer)
    if not layer.products:
        return rows, Axis("k", per_row, per_row)
    x = network.input_shape(layer)
    inputs = layer.weight_shape(x)[1]
    bias = len(layer.bias_shape(x))
    columns = Columns((per_row - bias) // inputs, bias)
    granule = network.granules[layer.inputs[0]] if inputs == x[0] else 1
    return rows, Axis("k", per_row, inputs, granule, columns)


def shards(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank updates of the weights under sharded synchronisation: its rows' entries, cut
    over those that sum gradients.
    """
    rows, per_row = _rows(network, layer)
    return _layout(config,
                   _known(network, "shards", layer, lambda: (rows, Axis(SHARD, per_row, per_row))))


def _rows(network: Network, layer: Layer) -> tuple[Axis, int]:
    """The axis of a layer's output channels, and the entries of a row."""
    x = network.input_shape(layer)
    rows = layer.weight_shape(x)[0]
    return Axis("c", rows, rows), layer.parameters(x) // rows
