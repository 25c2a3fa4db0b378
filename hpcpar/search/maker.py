"""Making the tables of a search: layers and edges lowered as any plan's are, and all that they do priced in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from hpcpar.cost.bulk import Bill, Bulk, entry
from hpcpar.cost.compute import timed_all
from hpcpar.cost.costs import repeats
from hpcpar.cost.links import Wires
from hpcpar.cost.memory import NOTHING as NO_MEMORY
from hpcpar.cost.memory import Ends, Memory, edge_memory, layer_memory
from hpcpar.cost.work import Work, Workload
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.config import Config
from hpcpar.plan.layout import needed, owned
from hpcpar.plan.plan import Plan
from hpcpar.plan.stack import structure
from hpcpar.schedule.builder import Builder, Move, Task
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.pattern import NOTHING
from hpcpar.schedule.sharing import begins_sum, in_place, passes_gradient
from hpcpar.schedule.steps import Phase
from hpcpar.search.geometry import Three, geometry
from hpcpar.search.tables import Held, Link, Table, Unit


@dataclass
class _Lowered:
    """The steps of a unit, or of edges of one structure, and what they hold beside wire buffers: all cases, or one."""

    plan: Plan
    edges: Edges
    steps: list[Task | Move]
    shape: tuple[int, ...]
    held: Callable[[tuple[int, ...] | None], Any]

    def key(self, step: Task | Move) -> Any:
        """Equal for steps of units that cost alike; stacks share nothing."""
        if len(self.shape) > 1:
            return id(step)
        if isinstance(step, Move):
            return step.key
        return (self.edges.key(step.layer, step.batch), step.op)


def _undecided(step: Move) -> tuple[str, int]:
    """A collective's price is that of its cheapest algorithm, whichever it is."""
    return "auto", 1


class TableMaker:
    """Prices nodes and edges of a plan's network; equal ones once.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations do not.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine, contention: float | None = None, gamma: float = 1.0) -> None:
        self.network, self.machine, self.gamma = network, machine, gamma
        self.plan = replace(plan, overlap="none", configs={})
        wires = Wires(machine, contention)
        # a plan's algorithms are chosen without regard to a contention that is given
        self.bulk = Bulk(machine, wires, plan.collectives, wires if contention is None else Wires(machine), plan.ranks)
        self._edges: dict[Any, Table] = {}
        self._families: dict[Any, Config] = {}

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
        held = memory.flying(self.plan.microbatches)
        return (held if self.gamma == 1.0 else held.scaled(self.gamma)).total_bytes

    def tables(self, units: Sequence[Unit], links: Sequence[Link]) -> tuple[list[Table], list[Table]]:
        """OptCNN's tC and tS of units (all that their configurations decide alone), and tX of edges, each for its pairs."""
        node_keys, nodes = self._lowered_nodes(units)
        edge_keys, groups = self._lowered_edges(links)
        made = self._priced([*nodes.values(), *(part for _, part in groups)])
        known = dict(zip(nodes, made, strict=False))
        for (keys, _), table in zip(groups, made[len(nodes):], strict=True):
            for i, key in enumerate(keys):
                self._edges[key] = table.of_stack(i)
        return [known[key] for key in node_keys], [self._edges[key] for key in edge_keys]

    # -- nodes -----------------------------------------------------------------------------------------------------
    def _lowered_nodes(self, units: Sequence[Unit]) -> tuple[list[Any], dict[Any, _Lowered]]:
        configs: dict[str, Config] = {}
        for unit in units:
            configs |= self.family(unit, (-1,))
        b = Builder(self.network, replace(self.plan, configs=configs), _undecided)
        keys, lowered = [], {}
        for unit in units:
            keys.append(tuple((self._signature(layer), configs[layer.name].key) for layer in unit.layers))
            if keys[-1] not in lowered:
                lowered[keys[-1]] = self._node(unit, b)
        return keys, lowered

    def _node(self, unit: Unit, b: Builder) -> _Lowered:
        before, network, batch = len(b.steps), self.network, self.plan.samples_of_a_pass
        for layer in unit.layers:
            b.node(layer, batch)

        @cache
        def held() -> Any:
            total = sum((layer_memory(network, b.plan, layer) for layer in unit.layers), NO_MEMORY)
            for producer, layer in zip(unit.layers, unit.layers[1:], strict=False):
                # nothing moves inside a unit
                have, (want,) = owned(network, producer, b.plan.configs[producer.name], batch), b.edges.needs(layer, batch)
                total = total + edge_memory(network, b.plan, Edge(producer, layer, 0, have, want, NOTHING, NOTHING, None))
            return self._holds(total)

        return _Lowered(b.plan, b.edges, b.steps[before:], (len(unit.space),), lambda at: held() if at is None else entry(held(), at))

    def _signature(self, layer: Layer) -> Any:
        readers = len(self.network.consumers[layer.name])
        last = layer is self.network.layers[-1]
        return (self.network.signatures[layer.name], readers, last, any(name in self.network.trained for name in layer.inputs))

    # -- edges -----------------------------------------------------------------------------------------------------
    def _lowered_edges(self, links: Sequence[Link]) -> tuple[list[Any], list[tuple[list[Any], _Lowered]]]:
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
            if key in self._edges or key in new:
                continue
            new.add(key)
            layouts = (
                owned(self.network, tail, a, batch), needed(self.network, layer, c, batch, link.which),
                owned(self.network, layer, c, batch),
            )
            groups.setdefault((*map(structure, layouts), flags), {})[key] = (link, layouts)
        return keys, [(list(group), self._stacked(list(group.values()))) for group in groups.values()]

    def _stacked(self, group: list[tuple[Link, Three]]) -> _Lowered:
        """The movements of edges of one structure."""
        link, plan = group[0][0], self.plan
        g = geometry([layouts for _, layouts in group])
        e = Edge(link.producer.layers[-1], link.layer, link.which, g.have, g.want, g.forward, g.backward, "stack")
        b = Builder(self.network, plan, _undecided)
        b.edge(e)
        shape = (len(group), np.shape(g.have.config.n)[0], np.shape(g.want.config.n)[1])

        def held(at: tuple[int, ...] | None) -> Any:
            ends = Ends.of(e, g.made)
            if at is not None:
                ends = Ends(*(entry(value, at) for value in (ends.need, ends.own, ends.made, ends.forward, ends.backward)))
            return self._holds(edge_memory(self.network, plan, e, ends))

        return _Lowered(plan, b.edges, b.steps, shape, held)

    # -- prices ----------------------------------------------------------------------------------------------------
    def _priced(self, lowered: Sequence[_Lowered]) -> list[Table]:
        """Everything at once, what costs alike once."""
        moves, works, loads = dict[Any, tuple[Move, tuple[int, ...]]](), dict[Any, Work](), dict[int, Workload]()
        for part in lowered:
            load = loads.setdefault(id(part.edges), Workload(self.network, part.plan, part.edges))
            for step in part.steps:
                key = part.key(step)
                if isinstance(step, Move):
                    moves.setdefault(key, (step, part.shape))
                elif key not in works:
                    works[key] = load.work(step.layer, step.op, step.batch)
        bills = dict(zip(moves, self.bulk.bills(list(moves.values())), strict=True))
        costs = dict(zip(works, timed_all(self.machine, list(works.values())), strict=True))
        return [self._table(part, bills, costs) for part in lowered]

    def _table(self, part: _Lowered, bills: dict[Any, Bill], costs: dict[Any, tuple[Any, Any]]) -> Table:
        """The sum over the steps of a unit, or of stacked edges."""
        seconds, hideable = np.zeros(part.shape), np.zeros(part.shape)
        measured: Any = np.bool_(bool(self.machine.compute))
        wires: dict[str, Bill] = {}
        for step in part.steps:
            times = repeats(part.plan, step.phase)
            if isinstance(step, Move):
                bill = bills[part.key(step)]
                seconds += bill.seconds if times == 1 else times * bill.seconds
                if step.phase is Phase.GRADIENT:
                    hideable += bill.seconds
                wires.setdefault(step.tensor, bill)
            else:
                cost, known = costs[part.key(step)]
                if self.machine.compute:
                    measured = measured & (known | np.equal(cost, 0))
                cost = cost if np.all(step.present) else np.where(step.present, cost, 0.0)
                seconds += cost if times == 1 else times * cost

        def whole() -> Any:
            return np.zeros(part.shape) + part.held(None) + sum(bill.wire_bytes() for bill in wires.values())

        def one(at: tuple[int, ...]) -> float:
            return float(part.held(at) + sum(bill.wire_bytes(at) for bill in wires.values()))

        return Table(seconds, Held(whole, one), hideable, measured)
