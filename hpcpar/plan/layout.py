"""Layouts: the box of a tensor that each rank owns (a layer's output) or needs (its input)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.receptive_field import Columns, Full, Same
from hpcpar.plan.axis import Axis, IntArray, all_intervals, intervals, tabulate
from hpcpar.plan.boxes import Box, Interval, items, largest_part, part_of, shared
from hpcpar.plan.config import ONE, Config, Ints, MergedAxis, MeshAxis

#: Axis of a weight that sharded synchronization cuts over all ranks whose gradients are summed.
SHARD = "shard"


@dataclass(frozen=True)
class Layout:
    """Boxes of one tensor over the ranks of a configuration.

    Attributes
    ----------
    summed : bool
        Whether the tensor is a layer's output after the reduction of partial sums. If so, c and k
        together cut its channels (`Config.scatter`), or all k ranks own the same channels.
    partial : tuple of str
        Axes of the configuration along which ranks hold partial sums of the same elements.
    """

    config: Config
    axes: tuple[Axis, ...]
    summed: bool = False
    partial: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[Ints, ...]:
        """The global tensor's shape."""
        return tuple(a.extent for a in self.axes)

    @cached_property
    def mesh_axes(self) -> dict[str, MeshAxis]:
        """Rank coordinates that cut this tensor, by axis."""
        names = [a.name for a in self.axes]
        mesh_axes = {name: mesh_axis for name, mesh_axis in self.config.mesh_axes.items()
                     if name in names}
        if self.summed and self.config.scatter:
            k = self.config.mesh_axes["k"]
            mesh_axes["c"] = MeshAxis(k.stride, self.config.c * k.size)
        if SHARD in names:  # sample and image parts
            merged = tuple(self.config.mesh_axes[a] for a in ("n", "d", "h", "w"))
            mesh_axes[SHARD] = MergedAxis(merged[-1].stride, math.prod(d.size for d in merged),
                                          merged)
        return mesh_axes

    @cached_property
    def _uncut(self) -> dict[str, MeshAxis]:
        cutting = set(self.mesh_axes)
        if self.summed and self.config.scatter:
            cutting.add("k")
        elif SHARD in cutting:
            cutting |= {"n", "d", "h", "w"}
        return {name: d for name, d in self.config.mesh_axes.items() if name not in cutting}

    @property
    def spare(self) -> tuple[MeshAxis, ...]:
        """Rank coordinates that do not cut this tensor: ranks along them have the same box."""
        return tuple(self._uncut.values())

    @cached_property
    def copies(self) -> tuple[MeshAxis, ...]:
        """Rank coordinates along which ranks hold the same box with the same values."""
        return tuple(d for name, d in self._uncut.items() if name not in self.partial)

    def holds(self, rank: int) -> bool:
        """True if the layer runs on `rank`."""
        return self.config.holds(rank)

    def degree(self, axis: Axis) -> Ints:
        """Number of parts into which `axis` is cut."""
        return self.mesh_axis(axis).size

    def mesh_axis(self, axis: Axis) -> MeshAxis:
        """The rank coordinate that cuts `axis`."""
        return self.mesh_axes.get(axis.name, ONE)

    def replica(self, rank: int) -> int:
        """Position of `rank` among the ranks with the same values; arbitrary if it holds none."""
        index: Ints = 0
        for mesh_axis in self.copies:
            index = index * mesh_axis.size + mesh_axis.of(rank - self.config.first)
        return int(index)

    @property
    def replicas(self) -> Ints:
        """Number of ranks that hold the same values."""
        return math.prod(mesh_axis.size for mesh_axis in self.copies)

    def box(self, rank: int) -> Box:
        """The box of `rank`; empty if the layer does not run there."""
        if not self.holds(rank):
            return tuple((0, 0) for _ in self.axes)
        at, cuts = rank - self.config.first, map(self.mesh_axis, self.axes)
        return tuple(axis.interval(int(cut.size), int(cut.of(at)))
                     for axis, cut in zip(self.axes, cuts, strict=True))

    def items(self, rank: int) -> int:
        """Number of elements in the box of `rank`."""
        return items(self.box(rank))

    @cached_property
    def largest(self) -> tuple[Ints, ...]:
        """Shape of the largest box; axes are cut independently, so some rank has all maxima."""
        return tuple(_largest(a, self.degree(a)) for a in self.axes)

    @cached_property
    def largest_items(self) -> Ints:
        """Number of elements in the largest box."""
        return math.prod(self.largest)

    def ranks_touching(self, box: Box) -> Iterator[int]:
        """Ranks whose boxes overlap `box`, in ascending order."""
        choices = {axis.name: self._parts_touching(axis, interval)
                   for axis, interval in zip(self.axes, box, strict=True)}
        if not all(chosen for name, chosen in choices.items() if name not in self.mesh_axes):
            return
        offsets = [[i * int(mesh_axis.stride) for i in choices[name]]
                   for name, mesh_axis in self.mesh_axes.items()]
        offsets += [[i * int(d.stride) for i in range(int(d.size))] for d in self.spare]
        first = int(self.config.first)
        yield from sorted(first + sum(chosen) for chosen in itertools.product(*offsets))

    def _parts_touching(self, axis: Axis, interval: Interval) -> list[int]:
        """The parts of an axis that overlap an interval."""
        degree, extent, (start, stop) = int(self.degree(axis)), int(axis.extent), interval
        candidates = range(degree)
        if isinstance(axis.relation, Same) and 0 <= start < stop <= extent:
            first = part_of(extent, degree, start, axis.granule)
            last = part_of(extent, degree, stop - 1, axis.granule)
            candidates = range(first, last + 1)
        return [i for i in candidates if shared(axis.interval(degree, i), interval, extent)]


def _largest(axis: Axis, degree: Ints) -> Ints:
    if isinstance(axis.relation, Full) or (isinstance(degree, int) and degree == 1):
        return axis.extent
    if isinstance(axis.relation, Same):
        return largest_part(axis.extent, degree, axis.granule)
    if isinstance(axis.relation, Columns):
        outputs = largest_part(axis.out_extent, degree, axis.granule)
        return outputs * axis.relation.size + axis.relation.bias
    return tabulate(functools.partial(_widest, axis), degree, np.int64)


@lru_cache(maxsize=50_000)
def _widest(axis: Axis, parts: int) -> int:
    start, stop = all_intervals(axis, parts)
    return int((stop - start).max())


# -- boxes of many ranks at once; `Layout.box` is the scalar version -------------------------------
def lives(layout: Layout, rank: IntArray) -> NDArray[np.bool_]:
    """Mask of the ranks on which the layer runs."""
    at = rank - layout.config.first
    return (at >= 0) & (at < layout.config.ranks)


def part(layout: Layout, axis: Axis, rank: IntArray) -> IntArray:
    """Index of each rank's part of an axis."""
    mesh_axis = layout.mesh_axis(axis)
    return np.asarray(mesh_axis.of(rank - layout.config.first) + np.zeros_like(rank))


def boxes(layout: Layout, rank: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Starts and stops of the ranks' boxes along each axis; 0 if the layer does not run there."""
    runs = lives(layout, rank)
    out = []
    for axis in layout.axes:
        start, stop = intervals(axis, layout.degree(axis),
                                np.where(runs, part(layout, axis, rank), 0))
        out.append((np.where(runs, start, 0), np.where(runs, stop, 0)))
    return out


def box_shapes(layout: Layout, rank: IntArray) -> tuple[IntArray, ...]:
    """Sizes of the ranks' boxes along each axis."""
    return tuple(stop - start for start, stop in boxes(layout, rank))


def box_items(layout: Layout, rank: IntArray) -> IntArray:
    """Number of items in the ranks' boxes."""
    return math.prod(box_shapes(layout, rank), start=np.ones_like(rank))


# -- layouts of a layer ----------------------------------------------------------------------------
def _output_axes(network: Network, layer: Layer, batch: int) -> tuple[Axis, ...]:
    shape, granule = network.shapes[layer.name], network.granules[layer.name]
    extents = zip(axes_of(shape), (batch, *shape), strict=True)
    return tuple(Axis(name, n, n, granule if name == "c" else 1) for name, n in extents)


def owned(network: Network, layer: Layer, config: Config, batch: int) -> Layout:
    """The part of the layer's output that each rank owns."""
    return Layout(config, _output_axes(network, layer, batch), summed=True)


def computed(network: Network, layer: Layer, config: Config, batch: int) -> Layout:
    """The part of the layer's output that each rank computes, before partial sums (k) add up."""
    return Layout(config, _output_axes(network, layer, batch), partial=("k",))


def needed(network: Network, layer: Layer, config: Config, batch: int, which: int = 0) -> Layout:
    """The part of input `which` that each rank needs to compute its part of the output."""
    x, y = network.input_shapes(layer)[which], network.shapes[layer.name]
    out = dict(zip(axes_of(y), (batch, *y), strict=True))
    granule = network.granules[layer.name]
    axes: list[Axis] = []
    for name, extent in zip(axes_of(x), (batch, *x), strict=True):
        relation = layer.relation(name, x, which)
        if name == "c" and layer.is_matmul and isinstance(relation, Full):
            axes.append(Axis("k", extent, extent, network.granules[layer.inputs[which]]))
        elif name in out:
            axes.append(Axis(name, extent, out[name], granule if name == "c" else 1, relation))
        else:  # the output lacks this axis
            axes.append(Axis(f"all {name}", extent, 1, 1, relation))
    # output parts along an axis that the input lacks contribute partial sums to the input gradient:
    # channel parts to all input channels (k), image parts to the image's gate
    summed = out.keys() - {axis.name for axis in axes}
    return Layout(config, tuple(axes), partial=tuple(name for name in out if name in summed))


def parameters(network: Network, layer: Layer, config: Config) -> Layout:
    """The part of the weights that each rank owns: rows of output channels with their biases.

    If the reduction is cut (k), each part has the weights of its inputs, and all parts have the
    bias.
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
    """The part of the weights that each rank updates under sharded synchronization.

    The ranks that sum a row's gradients divide its entries.
    """
    rows, per_row = _rows(network, layer)
    return Layout(config, (rows, Axis(SHARD, per_row, per_row)))


def _rows(network: Network, layer: Layer) -> tuple[Axis, int]:
    """The axis of a layer's output channels, and the number of entries per row."""
    x = network.input_shape(layer)
    rows = layer.weight_shape(x)[0] if layer.has_weights else network.shapes[layer.name][0]
    granule = min(network.granules[layer.name], rows)  # 1 if all channels share one number
    return Axis("c", rows, rows, granule), layer.weight_items(x) // rows
