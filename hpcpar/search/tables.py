"""Cost tables of the layer-wise search: seconds and bytes by configuration (OptCNN's tC + tS, tX).

A layer has an entry for each of its configurations, an edge for each pair of configurations. An
entry is what `predict --overlap none` counts for that layer or edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config, Flags
from hpcpar.search.edge_elimination import total
from hpcpar.search.space import Space, Spaces


@dataclass(frozen=True)
class Unit:
    """Layers that share a configuration: one, and the elementwise layers behind it.

    Nothing else reads the tensors between them.
    """

    layers: tuple[Layer, ...]
    space: Space

    @property
    def name(self) -> str:
        return self.layers[0].name


@dataclass(frozen=True)
class Link:
    """An edge between two units, into input `which` of `layer`, the consumer's first.

    Attributes
    ----------
    rows, columns : ndarray, optional
        Indices of the producer's and the consumer's configurations; by default all.
    """

    producer: Unit
    consumer: Unit
    layer: Layer
    which: int
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds and bytes of a unit's configurations, or of the pairs at an edge.

    Attributes
    ----------
    seconds, bytes : ndarray
        [configurations], or [configurations of the producer, configurations of the consumer].
    hideable : ndarray
        The part of the seconds that sums weight gradients, which backpropagation may hide.
    measured : ndarray of bool
        All computing comes from the machine's calibrated table.
    """

    seconds: NDArray[np.float64]
    bytes: NDArray[np.float64]
    hideable: NDArray[np.float64]
    measured: Flags = True

    def __add__(self, other: Table) -> Table:
        return Table(self.seconds + other.seconds, self.bytes + other.bytes,
                     self.hideable + other.hideable)

    def at(self, rows: NDArray[np.int64]) -> Table:
        """The table of some configurations of a unit."""
        if len(rows) == len(self.seconds):
            return self
        return Table(self.seconds[rows], self.bytes[rows], self.hideable[rows])

    def hiding(self, part: float) -> Table:
        """The table without a fraction of the time that sums gradients."""
        return Table(self.seconds - part * self.hideable, self.bytes, (1 - part) * self.hideable)


@dataclass
class Tables:
    """A search problem: nodes with their tables, and edges (from, to) with theirs."""

    units: list[Unit]
    nodes: list[Table]
    edges: dict[tuple[int, int], Table] = field(default_factory=dict)

    def price(self, chosen: list[int]) -> float:
        """The objective (OptCNN, Eq 1): seconds of a choice of one configuration for each unit."""
        return total([t.seconds for t in self.nodes],
                     {pair: t.seconds for pair, t in self.edges.items()}, chosen)

    def memory(self, chosen: list[int]) -> float:
        """Bytes of the largest rank."""
        of_nodes = sum(float(t.bytes[c]) for t, c in zip(self.nodes, chosen, strict=True))
        return of_nodes + sum(float(table.bytes[chosen[tail], chosen[head]])
                              for (tail, head), table in self.edges.items())


def units(network: Network, spaces: Spaces) -> list[Unit]:
    """The network's layers as units.

    Elementwise layers join the layer before them: another configuration would only move data.
    """
    made: list[list[Layer]] = []
    place: dict[str, int] = {}
    for layer in network.layers:
        joins = layer.elementwise and layer.splits_channels and not layer.merges
        if joins and _only_reader(network, layer):
            place[layer.name] = place[layer.inputs[0]]
            made[place[layer.name]].append(layer)
        else:
            place[layer.name] = len(made)
            made.append([layer])
    return [Unit(tuple(group), spaces.of(group[0])) for group in made]


def _only_reader(network: Network, layer: Layer) -> bool:
    """True where no other layer reads the layer's input, which is not the images."""
    name = layer.inputs[0]
    return len(network.consumers[name]) == 1 and bool(network.by_name[name].inputs)


def configured(made: Sequence[Unit], rows: Iterable[int]) -> dict[str, Config]:
    """The configuration of every layer, from the place of each unit's in its space."""
    return {layer.name: unit.space.one(int(row), i > 0)
            for unit, row in zip(made, rows, strict=True) for i, layer in enumerate(unit.layers)}


def layer_edges(network: Network, made: list[Unit]) -> list[tuple[int, int, Layer, int]]:
    """Edges between units: (producer, consumer, reading layer, which of its inputs)."""
    place = {layer.name: i for i, unit in enumerate(made) for layer in unit.layers}
    out = []
    for i, unit in enumerate(made):
        head = unit.layers[0]
        out += [(place[name], i, head, which) for which, name in enumerate(head.inputs)]
    return out

