"""What the layers and edges of a search do under their configurations, lowered as any plan's are: whole numbers, the same on every machine.

Searches of one process ask for the same again (on other machines, under other limits), so that the latest are kept.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.freight import Freight, Load, freight
from hpcpar.cost.memory import NOTHING as NO_MEMORY
from hpcpar.cost.memory import Ends, Memory, edge_memory, layer_memory
from hpcpar.cost.work import Work, Workload
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout, needed, owned
from hpcpar.plan.plan import Plan
from hpcpar.plan.stack import structure
from hpcpar.schedule.builder import Builder
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.parts import Move, Task
from hpcpar.schedule.pattern import NOTHING
from hpcpar.schedule.sharing import begins_sum, in_place, passes_gradient
from hpcpar.search.geometry import MOST_CASES, Three, geometry
from hpcpar.search.tables import Held, Link, Unit


@dataclass
class Part:
    """The steps of a unit, or of edges of one structure, and the memory that they need.

    Attributes
    ----------
    boxes : callable
        From the place of a case (None: all) to the bytes that are held beside wire buffers.
    lines : list
        Of each step, its place among the movements or the pieces of work that cost alike.
    wires : dict
        The movements with a wire buffer of their own, by tensor.
    """

    plan: Plan
    edges: Edges
    steps: list[Task | Move]
    shape: tuple[int, ...]
    boxes: Callable[[tuple[int, ...] | None], Any]
    lines: list[int] = field(default_factory=list)
    wires: dict[str, int] = field(default_factory=dict)

    def key(self, step: Task | Move) -> Any:
        """Equal for steps of units that cost alike; stacks share nothing."""
        if len(self.shape) > 1:
            return id(step)
        if isinstance(step, Move):
            return step.key
        return (self.edges.key(step.layer, step.batch), step.op)

    def held(self, loads: list[Load]) -> Held:
        """Bytes of all cases, or of one."""
        wires = [loads[i] for i in self.wires.values()]
        return Held(
            lambda: np.zeros(self.shape) + self.boxes(None) + sum(load.wire_bytes() for load in wires),
            lambda at: float(self.boxes(at) + sum(load.wire_bytes(at) for load in wires)),
        )


class Lowering(NamedTuple):
    """Units and edges lowered; equal ones once.

    Attributes
    ----------
    node_keys, edge_keys : list
        What units and edges are equal by.
    nodes : dict
        From a unit's key to its part's place.
    groups : list
        The keys of the edges of each stack, whose parts follow those of the nodes.
    held : list of Held
        Of each part.
    """

    node_keys: list[Any]
    edge_keys: list[Any]
    nodes: dict[Any, int]
    groups: list[list[Any]]
    parts: list[Part]
    held: list[Held]
    freight: Freight
    works: list[Work]


#: Cases of movements that are kept: there and back, those of as many pairs of configurations as geometries are kept of.
MOST_MOVED = 2 * MOST_CASES
#: The latest lowerings of all configurations; with the network and the units, so that no others get their ids.
_kept: OrderedDict[Any, tuple[Lowering, Network, Sequence[Unit], int]] = OrderedDict()


class Lowerer:
    """Lowers units and edges of a plan's network; keeps what it knows of families and edges.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations and its machine do not.
    gamma : float
        ParaDL's memory reuse factor.
    """

    def __init__(self, network: Network, plan: Plan, gamma: float = 1.0) -> None:
        self.network, self.gamma = network, gamma
        self.plan = replace(plan, overlap="none", configs={}, machine={})
        self._families: dict[Any, Config] = {}

    def lower(self, units: Sequence[Unit], links: Sequence[Link], known: dict[Any, Any]) -> Lowering:
        """Lower units and edges, but those edges whose keys are known; all configurations of a network are kept."""
        whole = bool(units) and all(link.whole for link in links)
        key = (id(self.network), *_options(self.plan), self.gamma, len(links), *(id(unit.space) for unit in units))
        if whole and key in _kept:
            _kept.move_to_end(key)
            return _kept[key][0]
        found = self._lower(units, links, known)
        if whole and not known:
            _kept[key] = (found, self.network, units, sum(math.prod(load.shape) for load in found.freight.loads))
            while sum(cases for *_, cases in _kept.values()) > MOST_MOVED:
                _kept.popitem(last=False)
        return found

    def _lower(self, units: Sequence[Unit], links: Sequence[Link], known: dict[Any, Any]) -> Lowering:
        node_keys, nodes = self._nodes(units)
        edge_keys, groups = self._edges(links, known)
        parts = [*nodes.values(), *(part for _, part in groups)]
        moves, works, loads = dict[Any, int](), dict[Any, int](), dict[int, Workload]()
        steps: list[tuple[Move, tuple[int, ...]]] = []
        done: list[Work] = []
        for part in parts:
            load = loads.setdefault(id(part.edges), Workload(self.network, part.plan, part.edges))
            for step in part.steps:
                key = part.key(step)
                if isinstance(step, Move):
                    place = moves.setdefault(key, len(steps))
                    if place == len(steps):
                        steps.append((step, part.shape))
                    part.wires.setdefault(step.tensor, place)
                else:
                    place = works.setdefault(key, len(done))
                    if place == len(done):
                        done.append(load.work(step.layer, step.op, step.batch))
                part.lines.append(place)
        laid = freight(steps, self.plan.ranks)
        return Lowering(
            node_keys, edge_keys, {key: i for i, key in enumerate(nodes)}, [keys for keys, _ in groups], parts,
            [part.held(laid.loads) for part in parts], laid, done,
        )

    def family(self, unit: Unit, shape: tuple[int, ...], chosen: Any = None) -> dict[str, Config]:
        """The configurations of a unit's layers as arrays; the same objects for equal spaces, so that equal layers share prices."""
        out = {}
        for i, layer in enumerate(unit.layers):
            if chosen is None or len(chosen) == len(unit.space):
                out[layer.name] = unit.space.family(shape, i > 0)
                continue
            key = (id(unit.space), shape, chosen.tobytes(), i > 0)
            if key not in self._families:
                self._families[key] = unit.space.config(chosen, shape, i > 0)
            out[layer.name] = self._families[key]
        return out

    def _holds(self, memory: Memory) -> Any:
        """Bytes, with what every micro-batch keeps for its backward pass."""
        memory = memory.flying(self.plan.microbatches)
        return (memory if self.gamma == 1.0 else memory.scaled(self.gamma)).total_bytes

    # -- nodes -----------------------------------------------------------------------------------------------------
    def _nodes(self, units: Sequence[Unit]) -> tuple[list[Any], dict[Any, Part]]:
        configs: dict[str, Config] = {}
        for unit in units:
            configs |= self.family(unit, (-1,))
        # a collective's price is that of its cheapest algorithm, whichever it is
        b = Builder(self.network, replace(self.plan, configs=configs), None)
        keys, lowered = [], {}
        for unit in units:
            keys.append(tuple((self._signature(layer), configs[layer.name].key) for layer in unit.layers))
            if keys[-1] not in lowered:
                lowered[keys[-1]] = self._node(unit, b)
        return keys, lowered

    def _node(self, unit: Unit, b: Builder) -> Part:
        before, batch = len(b.steps), self.plan.samples_of_a_pass
        for layer in unit.layers:
            b.node(layer, batch)

        def boxes(at: tuple[int, ...] | None) -> Any:
            total = sum((layer_memory(self.network, b.plan, layer, at=at) for layer in unit.layers), NO_MEMORY)
            made = [owned(self.network, layer, b.plan.configs[layer.name], batch) for layer in unit.layers]
            for producer, layer, have, then in zip(unit.layers, unit.layers[1:], made, made[1:], strict=False):
                # nothing moves inside a unit
                e = Edge(producer, layer, 0, have, b.edges.needs(layer, batch)[0], NOTHING, NOTHING, None)
                total = total + self._edge_memory(e, then, at)
            return self._holds(total)

        return Part(b.plan, b.edges, b.steps[before:], (len(unit.space),), boxes)

    def _signature(self, layer: Layer) -> Any:
        readers = len(self.network.consumers[layer.name])
        last = layer is self.network.layers[-1]
        return (self.network.signatures[layer.name], readers, last, any(name in self.network.trained for name in layer.inputs))

    # -- edges -----------------------------------------------------------------------------------------------------
    def _edges(self, links: Sequence[Link], known: dict[Any, Any]) -> tuple[list[Any], list[tuple[list[Any], Part]]]:
        """Edges of one structure are lowered together, as a stack."""
        keys, groups, new, batch = [], dict[Any, dict[Any, Any]](), set(), self.plan.samples_of_a_pass
        for link in links:
            configs = self.family(link.producer, (-1, 1), link.rows) | self.family(link.consumer, (1, -1), link.columns)
            tail, layer = link.producer.layers[-1], link.layer
            shared = len(self.network.consumers[tail.name]) > 1
            trains = tail.name in self.network.trained
            begins = begins_sum(self.network, tail, layer, link.which)
            flags = (isinstance(layer, Loss), in_place(layer, tail), passes_gradient(layer), len(layer.inputs) > 1, shared, begins, trains)
            a, c = configs[tail.name], configs[layer.name]
            key = (self.network.signatures[tail.name], self.network.signatures[layer.name], link.which, a.key, c.key, flags)
            keys.append(key)
            if key in known or key in new:
                continue
            new.add(key)
            layouts = (
                owned(self.network, tail, a, batch), needed(self.network, layer, c, batch, link.which),
                owned(self.network, layer, c, batch),
            )
            groups.setdefault((*map(structure, layouts), flags), {})[key] = (link, layouts)
        return keys, [(list(group), self._stacked(list(group.values()))) for group in groups.values()]

    def _stacked(self, group: list[tuple[Link, Three]]) -> Part:
        """The movements of edges of one structure."""
        link, plan = group[0][0], self.plan
        g = geometry([layouts for _, layouts in group])
        e = Edge(link.producer.layers[-1], link.layer, link.which, g.have, g.want, g.forward, g.backward, "stack")
        b = Builder(self.network, plan, None)
        b.edge(e)
        shape = (len(group), np.shape(g.have.config.n)[0], np.shape(g.want.config.n)[1])

        return Part(plan, b.edges, b.steps, shape, lambda at: self._holds(self._edge_memory(e, g.made, at)))

    def _edge_memory(self, e: Edge, made: Layout, at: tuple[int, ...] | None) -> Memory:
        """Of all cases, or of one; `made` is what ranks own of the consumer's output."""
        ends = Ends.of(e, made)
        return edge_memory(self.network, self.plan, e, ends if at is None else ends.at(at))


def _options(plan: Plan) -> tuple[Any, ...]:
    """All of a plan that its layers and edges follow."""
    return tuple(getattr(plan, f.name) for f in fields(plan) if f.name not in ("network", "configs", "machine", "strategy"))
