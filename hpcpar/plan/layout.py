"""Which box of a tensor each rank holds: what it owns of a layer's output, or what it needs of a layer's input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.relation import Full, Groups, Relation, Same
from hpcpar.plan.boxes import Box, Interval, block, intersect, items, largest_part, part_of
from hpcpar.plan.config import Config

SAME = Same()


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
    """

    name: str
    extent: int
    out_extent: int
    granule: int = 1
    relation: Relation = SAME

    def interval(self, parts: int, index: int) -> Interval:
        """The interval of part `index`; all of an axis that is not cut, even where windows leave out its end."""
        return (0, self.extent) if parts == 1 else _interval(self, parts, index)


@lru_cache(maxsize=200_000)
def _interval(axis: Axis, parts: int, index: int) -> Interval:
    start, stop = block(axis.out_extent, parts, index, axis.granule)
    relation = axis.relation
    if isinstance(relation, Groups) and (parts % relation.groups == 0 or relation.groups % parts == 0):
        # by group, not by channel: a part without any output still belongs to a group
        if parts >= relation.groups:
            return block(axis.extent, relation.groups, index * relation.groups // parts)
        return block(axis.extent, parts, index)
    return relation.needed(start, stop, axis.extent)


@dataclass(frozen=True)
class Layout:
    """Boxes of one tensor over all ranks of a configuration."""

    config: Config
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The global tensor's shape."""
        return tuple(a.extent for a in self.axes)

    def degree(self, axis: Axis) -> int:
        return getattr(self.config, axis.name, 1)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        return tuple(self.config.coordinate(a.name, rank) if a.name in self.config.digits else 0 for a in self.axes)

    def box(self, rank: int) -> Box:
        """The box of `rank`."""
        return tuple(a.interval(self.degree(a), i) for a, i in zip(self.axes, self.coordinates(rank), strict=True))

    def items(self, rank: int) -> int:
        return items(self.box(rank))

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Largest extent over ranks, per axis (attained together: parts are cut independently)."""
        out = []
        for a in self.axes:
            degree = self.degree(a)
            if degree == 1 or isinstance(a.relation, Full):
                out.append(a.extent)
            elif isinstance(a.relation, Same):
                out.append(largest_part(a.extent, degree, a.granule))
            else:
                out.append(max(stop - start for start, stop in (a.interval(degree, i) for i in sample(degree))))
        return tuple(out)

    @property
    def largest_items(self) -> int:
        return math.prod(self.largest)

    def ranks_touching(self, box: Box) -> Iterator[int]:
        """Every rank whose box meets `box`, in order of rank."""
        names = [a.name for a in self.axes]
        choices: dict[str, list[int]] = {}
        for a, want in zip(self.axes, box, strict=True):
            degree = self.degree(a)
            near: Sequence[int] = range(degree)
            if isinstance(a.relation, Same) and want[1] > want[0]:
                near = range(part_of(a.extent, degree, want[0], a.granule), part_of(a.extent, degree, want[1] - 1, a.granule) + 1)
            choices[a.name] = [i for i in near if intersect((a.interval(degree, i),), (want,)) is not None]
        ranges = [choices[name] if name in names else range(d.size) for name, d in self.config.digits.items()]
        strides = [d.stride for d in self.config.digits.values()]
        yield from sorted(sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*ranges))


def sample(degree: int, most: int = 64) -> list[int]:
    """Part indices that show every extreme: all of them, or evenly spread ones with both ends where there are many."""
    if degree <= most:
        return list(range(degree))
    return sorted({i * (degree - 1) // (most - 1) for i in range(most)} | {0, 1, degree - 2, degree - 1})


def owned(network: Network, layer: Layer, config: Config, batch: int) -> Layout:
    """What each rank owns of the layer's output."""
    shape = (batch, *network.shapes[layer.name])
    granule = granule_of(network, layer)
    names = axes_of(network.shapes[layer.name])
    return Layout(config, tuple(Axis(a, e, e, granule if a == "c" else 1) for a, e in zip(names, shape, strict=True)))


def needed(network: Network, layer: Layer, config: Config, batch: int) -> Layout:
    """What each rank needs of the layer's input to compute the part of the output that it owns."""
    x = network.input_shape(layer)
    out = dict(zip(axes_of(network.shapes[layer.name]), (batch, *network.shapes[layer.name]), strict=True))
    granule = granule_of(network, layer)
    axes = []
    for name, extent in zip(axes_of(x), (batch, *x), strict=True):
        axes.append(Axis(name, extent, out.get(name, 1), granule if name == "c" else 1, layer.relation(name, x)))
    return Layout(config, tuple(axes))


def granule_of(network: Network, layer: Layer) -> int:
    """Unit in which the layer's channels are cut: flattened images stay cut at channels until a layer mixes features."""
    own = layer.granule(network.input_shape(layer)) if layer.inputs else 1
    if own == 1 and layer.inputs and isinstance(layer.relation("c", network.input_shape(layer)), Same):
        return granule_of(network, network.by_name[layer.inputs[0]])
    return own


def parameters(network: Network, layer: Layer, config: Config) -> Layout:
    """What each rank owns of the layer's weights and biases: rows of output channels, each with its inputs and its bias."""
    x = network.input_shape(layer)
    rows = layer.weight_shape(x)[0]
    per_row = layer.parameters(x) // rows
    return Layout(config, (Axis("c", rows, rows), Axis("row", per_row, per_row)))
