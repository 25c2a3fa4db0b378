"""Cost tables of the layer-wise search: seconds and memory of every layer under every configuration, of every edge under every pair.

The tables are made by the same lowering and pricing as any prediction, with a layer's configurations as a family, so an entry is what
`predict --overlap none` counts for that layer or edge (OptCNN's tC + tS, and tX).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcpar.cost.choose import chooser
from hpcpar.cost.compute import timed
from hpcpar.cost.costs import repeats
from hpcpar.cost.links import Wires
from hpcpar.cost.memory import Memory, edge_memory, layer_memory, wire_bytes
from hpcpar.cost.traffic import traffic
from hpcpar.cost.work import Workload
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Dropout, Layer, Loss, ReLU
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout, needed, owned
from hpcpar.plan.plan import Plan
from hpcpar.plan.stack import stack, structure
from hpcpar.schedule.builder import Builder, Move
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.pattern import backward_pattern, forward_pattern, relate
from hpcpar.schedule.sharing import in_place, passes_gradient
from hpcpar.schedule.steps import Phase
from hpcpar.search.space import Space, Spaces


@dataclass(frozen=True)
class Unit:
    """Layers that share a configuration: one, and the elementwise layers behind it that nothing else reads."""

    layers: tuple[Layer, ...]
    space: Space

    @property
    def name(self) -> str:
        return self.layers[0].name


@dataclass(frozen=True)
class Link:
    """An edge between two units: into input `which` of `layer`, the consumer's first; for some configurations (None: all) of each."""

    producer: Unit
    consumer: Unit
    layer: Layer
    which: int
    rows: Any = None
    columns: Any = None


@dataclass
class Table:
    """Seconds and bytes for each configuration of a unit [c], or for each pair at an edge [c of the producer, c of the consumer].

    Attributes
    ----------
    hideable : array
        What of the seconds is the sum of weight gradients, which backpropagation goes on beside.
    measured : array of bool
        All computing comes from the machine's calibrated table.
    """

    seconds: Any
    bytes: Any
    hideable: Any
    measured: Any = True

    def __add__(self, other: Table) -> Table:
        return Table(self.seconds + other.seconds, self.bytes + other.bytes, self.hideable + other.hideable)

    def at(self, rows: Any) -> Table:
        """The table of some configurations of a unit."""
        return Table(self.seconds[rows], self.bytes[rows], self.hideable[rows])


@dataclass
class Tables:
    """A search problem: nodes with their tables, and edges (from, to) with theirs."""

    units: list[Unit]
    nodes: list[Table]
    edges: dict[tuple[int, int], Table] = field(default_factory=dict)

    def price(self, chosen: list[int]) -> float:
        """The objective (OptCNN, Eq 1): seconds of a choice of one configuration for each unit."""
        total = sum(float(t.seconds[c]) for t, c in zip(self.nodes, chosen, strict=True))
        return total + sum(float(t.seconds[chosen[a], chosen[b]]) for (a, b), t in self.edges.items())

    def memory(self, chosen: list[int]) -> float:
        """Bytes of the largest rank."""
        total = sum(float(t.bytes[c]) for t, c in zip(self.nodes, chosen, strict=True))
        return total + sum(float(t.bytes[chosen[a], chosen[b]]) for (a, b), t in self.edges.items())


def units(network: Network, spaces: Spaces) -> list[Unit]:
    """The network's layers, with elementwise ones joined to the layer before them: another configuration there only moves data."""
    made: list[list[Layer]] = []
    place: dict[str, int] = {}
    for layer in network.layers:
        joins = isinstance(layer, ReLU | Dropout | BatchNorm) and len(network.consumers[layer.inputs[0]]) == 1
        if joins and network.by_name[layer.inputs[0]].inputs:
            place[layer.name] = place[layer.inputs[0]]
            made[place[layer.name]].append(layer)
        else:
            place[layer.name] = len(made)
            made.append([layer])
    return [Unit(tuple(group), spaces.of(group[0])) for group in made]


class TableMaker:
    """Prices nodes and edges of a plan's network; equal ones once.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations do not.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine, contention: float | None = None, gamma: float = 1.0) -> None:
        self.network, self.machine, self.gamma = network, machine, gamma
        self.plan = replace(plan, overlap="none")
        self.wires = Wires(machine, contention)
        # a plan's algorithms are chosen without regard to a contention that is given
        self.choose = chooser(machine, plan.collectives, self.wires if contention is None else None)
        self._known: dict[Any, Table] = {}
        self._families: dict[Any, Config] = {}

    def family(self, unit: Unit, shape: tuple[int, ...], chosen: Any = None) -> dict[str, Config]:
        """The configurations of a unit's layers as arrays; the same objects for equal spaces, so that equal layers share prices."""
        out = {}
        for i, layer in enumerate(unit.layers):
            key = (id(unit.space), shape, None if chosen is None else chosen.tobytes(), i > 0)
            if key not in self._families:
                self._families[key] = unit.space.config(slice(None) if chosen is None else chosen, shape, i > 0)
            out[layer.name] = self._families[key]
        return out

    def _held(self, memory: Memory) -> Any:
        held = memory.flying(self.plan.microbatches)
        return (held if self.gamma == 1.0 else held.scaled(self.gamma)).total_bytes

    def _builder(self, configs: dict[str, Config]) -> Builder:
        return Builder(self.network, replace(self.plan, configs=configs), self.choose)

    def node(self, unit: Unit) -> Table:
        """OptCNN's tC and tS of a unit: everything that its configuration decides alone."""
        b = self._builder(self.family(unit, (-1,)))
        key = ("node", *(self._signature(b, layer) for layer in unit.layers), b.plan.configs[unit.name].key)
        if key not in self._known:
            total = Table(*np.zeros((3, len(unit.space))))
            for layer in unit.layers:
                b.node(layer, b.plan.samples_of_a_pass)
                total.bytes = total.bytes + self._held(layer_memory(self.network, b.plan, layer))
            for before, layer in zip(unit.layers, unit.layers[1:], strict=False):
                (e,) = b.edges.into(layer, b.plan.samples_of_a_pass)
                assert e.producer is before
                total.bytes = total.bytes + self._held(edge_memory(self.network, b.plan, e))
            self._known[key] = self._sum(b, total)
        return self._known[key]

    def edges(self, links: Sequence[Link]) -> list[Table]:
        """OptCNN's tX of edges, each for chosen configurations at both ends.

        Edges of one structure are lowered and priced together, as a stack.
        """
        keys, groups = [], {}  # type: ignore[var-annotated]
        for link in links:
            configs = self.family(link.producer, (-1, 1), link.rows) | self.family(link.consumer, (1, -1), link.columns)
            tail, layer = link.producer.layers[-1], link.layer
            shared = len(self.network.consumers[tail.name]) > 1
            trains = tail.name in self.network.trained
            flags = (isinstance(layer, Loss), in_place(layer, tail), passes_gradient(layer), len(layer.inputs) > 1, shared, trains)
            a, c = configs[tail.name], configs[layer.name]
            key = (self.network.signatures[tail.name], self.network.signatures[layer.name], link.which, a.key, c.key, flags)
            keys.append(key)
            if key in self._known or any(key in group for group in groups.values()):
                continue
            batch = self.plan.samples_of_a_pass
            layouts = (
                owned(self.network, tail, a, batch), needed(self.network, layer, c, batch, link.which),
                owned(self.network, layer, c, batch),
            )
            groups.setdefault((*map(structure, layouts), flags), {})[key] = (link, layouts)
        for group in groups.values():
            self._known.update(zip(group, self._stacked(list(group.values())), strict=True))
        return [self._known[key] for key in keys]

    def _stacked(self, group: list[tuple[Link, tuple[Layout, Layout, Layout]]]) -> list[Table]:
        """The tables of edges of one structure."""
        link = group[0][0]
        have, want, made = (stack(layouts) for layouts in zip(*(layouts for _, layouts in group), strict=True))
        rel = relate(have, want)
        patterns = (forward_pattern(have, want, rel), backward_pattern(have, want, rel))
        e = Edge(link.producer.layers[-1], link.layer, link.which, have, want, *patterns, "stack")
        b = self._builder({})
        b.edge(e)
        shape = (len(group), np.shape(have.config.n)[0], np.shape(want.config.n)[1])
        total = self._sum(b, Table(np.zeros(shape), np.zeros(shape) + self._held(edge_memory(self.network, b.plan, e, made)), 0.0))
        return [Table(total.seconds[i], total.bytes[i], 0.0) for i in range(len(group))]

    def _signature(self, b: Builder, layer: Layer) -> Any:
        readers = len(self.network.consumers[layer.name])
        last = layer is self.network.layers[-1]
        return (self.network.signatures[layer.name], readers, last, any(name in self.network.trained for name in layer.inputs))

    def _sum(self, b: Builder, total: Table) -> Table:
        """Add the prices of a builder's steps."""
        load = Workload(self.network, b.plan, b.edges)
        seconds, held, hideable = total.seconds, total.bytes, total.hideable
        seen: set[str] = set()
        measured: Any = np.True_
        for step in b.steps:
            times = repeats(b.plan, step.phase)
            if isinstance(step, Move):
                found = traffic(step, self.machine, self.wires, self.plan.ranks, counting=False)
                seconds = seconds + times * found.seconds
                if step.phase is Phase.GRADIENT:
                    hideable = hideable + found.seconds
                if step.tensor not in seen:
                    seen.add(step.tensor)
                    held = held + wire_bytes(step, {step.key: found.sent_bytes})
            else:
                cost, known = timed(self.machine, load.work(step.layer, step.op, step.batch))
                measured = measured & (known | np.equal(cost, 0))
                seconds = seconds + times * (cost if step.present is True else np.where(step.present, cost, 0.0))
        return Table(seconds, held, hideable, measured)


def layer_edges(network: Network, made: list[Unit]) -> list[tuple[int, int, Layer, int]]:
    """Edges between units: (producer, consumer, reading layer, which of its inputs)."""
    place = {layer.name: i for i, unit in enumerate(made) for layer in unit.layers}
    out = []
    for i, unit in enumerate(made):
        head = unit.layers[0]
        out += [(place[name], i, head, which) for which, name in enumerate(head.inputs)]
    return out

