"""Decides what a cost table holds: seconds and bytes by configuration (OptCNN's tC + tS, tX).

A layer's table has one entry per configuration, an edge's table one per pair of configurations. An
entry equals the share of this layer or edge in `predict --overlap none`.
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
    """Layers that share a configuration: a layer and the elementwise layers after it.

    No other layer reads the tensors between them.
    """

    layers: tuple[Layer, ...]
    space: Space

    @property
    def name(self) -> str:
        return self.layers[0].name


@dataclass(frozen=True)
class Link:
    """An edge between two units, into input `which` of `layer`, the consumer's first layer.

    Attributes
    ----------
    rows, columns : ndarray, optional
        Indices of the producer's and the consumer's configurations; all by default.
    """

    producer: Unit
    consumer: Unit
    layer: Layer
    which: int
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds and bytes of a unit's configurations, or of an edge's pairs of configurations.

    Attributes
    ----------
    seconds, bytes : ndarray
        [configurations], or [configurations of the producer, configurations of the consumer].
    hideable : ndarray
        Seconds of gradient reductions, which backpropagation may hide; part of `seconds`.
    measured : ndarray of bool
        The machine's calibrated table covers all computation.
    """

    seconds: NDArray[np.float64]
    bytes: NDArray[np.float64]
    hideable: NDArray[np.float64]
    measured: Flags = True

    def __add__(self, other: Table) -> Table:
        return Table(self.seconds + other.seconds, self.bytes + other.bytes,
                     self.hideable + other.hideable)

    def at(self, rows: NDArray[np.int64]) -> Table:
        """The table of some of the unit's configurations."""
        if len(rows) == len(self.seconds):
            return self
        return Table(self.seconds[rows], self.bytes[rows], self.hideable[rows])

    def hiding(self, part: float) -> Table:
        """The table with a fraction of the gradient reductions hidden."""
        return Table(self.seconds - part * self.hideable, self.bytes, (1 - part) * self.hideable)


@dataclass
class Tables:
    """A search problem: tables of nodes and of edges (from, to)."""

    units: list[Unit]
    nodes: list[Table]
    edges: dict[tuple[int, int], Table] = field(default_factory=dict)

    def price(self, chosen: list[int]) -> float:
        """The objective (OptCNN, Eq 1): seconds under a chosen configuration for each unit."""
        return total([t.seconds for t in self.nodes],
                     {pair: t.seconds for pair, t in self.edges.items()}, chosen)

    def memory(self, chosen: list[int]) -> float:
        """Bytes of the largest rank under a choice."""
        node_bytes = sum(float(t.bytes[c]) for t, c in zip(self.nodes, chosen, strict=True))
        return node_bytes + sum(float(table.bytes[chosen[tail], chosen[head]])
                                for (tail, head), table in self.edges.items())


def units(network: Network, spaces: Spaces) -> list[Unit]:
    """The network's layers as units.

    Elementwise layers join the layer before them; a different configuration would only move data.
    """
    groups: list[list[Layer]] = []
    place: dict[str, int] = {}
    for layer in network.layers:
        joins = layer.elementwise and layer.splits_channels and not layer.merges
        if joins and _only_reader(network, layer):
            place[layer.name] = place[layer.inputs[0]]
            groups[place[layer.name]].append(layer)
        else:
            place[layer.name] = len(groups)
            groups.append([layer])
    return [Unit(tuple(group), spaces.of(group[0])) for group in groups]


def _only_reader(network: Network, layer: Layer) -> bool:
    """True if the layer alone reads its input, and the input is not the images."""
    name = layer.inputs[0]
    return len(network.consumers[name]) == 1 and bool(network.by_name[name].inputs)


def configured(units: Sequence[Unit], rows: Iterable[int]) -> dict[str, Config]:
    """Layer -> configuration, from the row of each unit's space."""
    return {layer.name: unit.space.one(int(row), i > 0)
            for unit, row in zip(units, rows, strict=True) for i, layer in enumerate(unit.layers)}


def layer_edges(network: Network, units: list[Unit]) -> list[tuple[int, int, Layer, int]]:
    """Edges between units: (producer, consumer, reading layer, index of the layer's input)."""
    place = {layer.name: i for i, unit in enumerate(units) for layer in unit.layers}
    out = []
    for i, unit in enumerate(units):
        head = unit.layers[0]
        out += [(place[name], i, head, which) for which, name in enumerate(head.inputs)]
    return out

