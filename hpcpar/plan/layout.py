"""Which box of a tensor each rank holds: what it owns of a layer's output, or what it needs of a
layer's input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.receptive_field import Columns, Full, Same
from hpcpar.plan.axis import Axis, all_intervals, tabulate
from hpcpar.plan.boxes import Box, intersect, items, largest_part, part_of
from hpcpar.plan.config import Config, Digit, Ints, Merged

#: The axis of a weight that sharded synchronisation cuts over all ranks whose gradients are summed.
SHARD = "shard"


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
    start, stop = all_intervals(axis, parts)
    return int((stop - start).max())


def _output_axes(network: Network, layer: Layer, batch: Ints) -> tuple[Axis, ...]:
    shape, granule = network.shapes[layer.name], network.granules[layer.name]
    extents = zip(axes_of(shape), (batch, *shape), strict=True)
    return tuple(Axis(name, n, n, granule if name == "c" else 1) for name, n in extents)


def owned(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank owns of the layer's output."""
    return Layout(config, _output_axes(network, layer, batch), summed=True)


def partial(network: Network, layer: Layer, config: Config, batch: Ints) -> Layout:
    """What each rank computes of the layer's output, before partial sums (k) are added."""
    return Layout(config, _output_axes(network, layer, batch), partial=("k",))


def needed(network: Network, layer: Layer, config: Config, batch: Ints, which: int = 0) -> Layout:
    """What each rank needs of input `which` of the layer to compute its part of the output."""
    axes = _needed_axes(network, layer, batch, which)
    # parts of the output channels each add to the gradient of a sum over input channels
    return Layout(config, axes, partial=("c",) if any(axis.name == "k" for axis in axes) else ())


def _needed_axes(network: Network, layer: Layer, batch: Ints, which: int) -> tuple[Axis, ...]:
    x = network.input_shapes(layer)[which]
    out = dict(zip(axes_of(network.shapes[layer.name]), (batch, *network.shapes[layer.name]),
                   strict=True))
    granule = network.granules[layer.name]
    axes: list[Axis] = []
    for name, extent in zip(axes_of(x), (batch, *x), strict=True):
        relation = layer.relation(name, x, which)
        if name == "c" and layer.is_matmul and isinstance(relation, Full):
            axes.append(Axis("k", extent, extent, network.granules[layer.inputs[which]]))
        elif name in out:
            axes.append(Axis(name, extent, out[name], granule if name == "c" else 1, relation))
        else:  # an axis that the layer does away with
            axes.append(Axis(f"all {name}", extent, 1, 1, relation))
    return tuple(axes)


def parameters(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank owns of the layer's weights: rows of output channels with their biases.

    Parts of a cut reduction (k) hold the weights of their inputs, and all of them the bias.
    """
    rows, per_row = _rows(network, layer)
    if not layer.is_matmul:
        return Layout(config, (rows, Axis("k", per_row, per_row)))
    x = network.input_shape(layer)
    inputs = layer.weight_shape(x)[1]
    bias = len(layer.bias_shape(x))
    columns = Columns((per_row - bias) // inputs, bias)
    granule = network.granules[layer.inputs[0]] if inputs == x[0] else 1
    return Layout(config, (rows, Axis("k", per_row, inputs, granule, columns)))


def shards(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank updates of the weights under sharded synchronisation.

    The entries of its rows are cut over the ranks that sum their gradients.
    """
    rows, per_row = _rows(network, layer)
    return Layout(config, (rows, Axis(SHARD, per_row, per_row)))


def _rows(network: Network, layer: Layer) -> tuple[Axis, int]:
    """The axis of a layer's output channels, and the entries of a row."""
    x = network.input_shape(layer)
    rows = layer.weight_shape(x)[0]
    return Axis("c", rows, rows), layer.parameters(x) // rows
