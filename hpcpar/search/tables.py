"""Cost tables of the layer-wise search: seconds and memory of every layer under every
configuration, of every edge under every pair.

The tables are made by the same lowering and pricing as any prediction, with a layer's
configurations as a family, so an entry is what `predict --overlap none` counts for that layer or
edge (OptCNN's tC + tS, and tX).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Dropout, Layer, ReLU
from hpcpar.plan.config import Config
from hpcpar.search.eliminate import total
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

    @property
    def whole(self) -> bool:
        """For all configurations of both ends."""
        ends = ((self.rows, self.producer), (self.columns, self.consumer))
        return all(chosen is None or len(chosen) == len(unit.space) for chosen, unit in ends)


class Held:
    """Bytes of a table: of all entries, or of one, which is worked out without the others.

    Parameters
    ----------
    whole : callable
        Gives the array.
    one : callable
        From an entry's place, a tuple, to its bytes.
    """

    def __init__(self, whole: Callable[[], Any], one: Callable[[tuple[int, ...]], float]) -> None:
        self._whole, self._one = whole, one
        self._known: dict[tuple[int, ...], float] = {}

    @cached_property
    def bytes(self) -> Any:
        return self._whole()

    def at(self, place: tuple[int, ...]) -> float:
        """Bytes of one entry."""
        if "bytes" in self.__dict__:
            return float(self.bytes[place])
        if place not in self._known:
            self._known[place] = float(self._one(place))
        return self._known[place]


class Table:
    """Seconds and bytes for each configuration of a unit [c], or for each pair at an edge [c of the
    producer, c of the consumer].

    Parameters
    ----------
    held : array or Held
        Bytes.
    hideable : array
        What of the seconds is the sum of weight gradients, which backpropagation goes on beside.
    measured : array of bool
        All computing comes from the machine's calibrated table.
    """

    def __init__(self, seconds: Any, held: Any, hideable: Any, measured: Any = True) -> None:
        self.seconds, self.hideable, self.measured = seconds, hideable, measured
        self.held = held if isinstance(held, Held) else Held(lambda: held,
                                                             lambda place: held[place])

    @property
    def bytes(self) -> Any:
        return self.held.bytes

    def __add__(self, other: Table) -> Table:
        held = Held(lambda: self.bytes + other.bytes,
                    lambda place: self.held.at(place) + other.held.at(place))
        return Table(self.seconds + other.seconds, held, self.hideable + other.hideable)

    def at(self, rows: Any) -> Table:
        """The table of some configurations of a unit."""
        if len(rows) == len(self.seconds):
            return self
        held = Held(lambda: self.bytes[rows], lambda place: self.held.at((int(rows[place[0]]),)))
        return Table(self.seconds[rows], held, self.hideable[rows])

    def hiding(self, part: float) -> Table:
        """With a part of the sums of gradients for nothing."""
        return Table(self.seconds - part * self.hideable, self.held, (1 - part) * self.hideable)


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
        of_nodes = sum(t.held.at((c,)) for t, c in zip(self.nodes, chosen, strict=True))
        return of_nodes + sum(t.held.at((chosen[a], chosen[b])) for (a, b), t in self.edges.items())


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

