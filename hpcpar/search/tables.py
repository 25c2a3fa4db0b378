"""Cost tables of the layer-wise search: seconds and memory of every layer under every
configuration, of every edge under every pair.

The tables are made by the same lowering and pricing as any prediction, with a layer's
configurations as a family, so an entry is what `predict --overlap none` counts for that layer or
edge (OptCNN's tC + tS, and tX).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Dropout, Layer, ReLU
from hpcpar.plan.config import Config
from hpcpar.search.edge_elimination import total
from hpcpar.search.space import Space, Spaces


@dataclass(frozen=True)
class Unit:
    """Layers that share a configuration: one, and the elementwise layers behind it that nothing
    else reads.
    """

    layers: tuple[Layer, ...]
    space: Space

    @property
    def name(self) -> str:
        return self.layers[0].name


@dataclass(frozen=True)
class Link:
    """An edge between two units: into input `which` of `layer`, the consumer's first; for some
    configurations (None: all) of each.
    """

    producer: Unit
    consumer: Unit
    layer: Layer
    which: int
    rows: Any = None
    columns: Any = None


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

    seconds: Any
    bytes: Any
    hideable: Any
    measured: Any = True

    def __add__(self, other: Table) -> Table:
        return Table(self.seconds + other.seconds, self.bytes + other.bytes,
                     self.hideable + other.hideable)

    def at(self, rows: Any) -> Table:
        """The table of some configurations of a unit."""
        if len(rows) == len(self.seconds):
            return self
        return Table(self.seconds[rows], self.bytes[rows], self.hideable[rows])

    def hiding(self, part: float) -> Table:
        """The table with a part of the sums of gradients for nothing."""
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
        return of_nodes + sum(float(t.bytes[chosen[a], chosen[b]]) for (a, b), t in self.edges.items())


def units(network: Network, spaces: Spaces) -> list[Unit]:
    """The network's layers, with elementwise ones joined to the layer before them: another
    configuration there only moves data.
    """
    made: list[list[Layer]] = []
    place: dict[str, int] = {}
    for layer in network.layers:
        joins = isinstance(layer,
                           ReLU | Dropout
                           | BatchNorm) and len(network.consumers[layer.inputs[0]]) == 1
        if joins and network.by_name[layer.inputs[0]].inputs:
            place[layer.name] = place[layer.inputs[0]]
            made[place[layer.name]].append(layer)
        else:
            place[layer.name] = len(made)
            made.append([layer])
    return [Unit(tuple(group), spaces.of(group[0])) for group in made]


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

