"""What the layers and edges of a search do under their configurations, lowered as any plan's are:
whole numbers, the same on every machine.

Searches of one process ask for the same again (on other machines, under other limits), so that the
latest are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.compute.work import Work, Workload
from hpcpar.cost.memory.memory import NOTHING as NO_MEMORY
from hpcpar.cost.memory.memory import Ends, Memory, edge_memory, layer_memory
from hpcpar.cost.network.freight import REDISTRIBUTE, Freight, Load, Moved, freight, sent_items
from hpcpar.cost.network.paired import Measures
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.axis import entry
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout, needed, owned
from hpcpar.plan.lines import TOGETHER, Alike, Block, Lines
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import begins_sum, in_place, passes_gradient
from hpcpar.schedule.builder import Builder
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.paired import Patterns
from hpcpar.schedule.pattern import NOTHING, Pattern
from hpcpar.schedule.steps import Phase
from hpcpar.search.tables import Held, Link, Unit

#: What the producer's ranks own, what the consumer's need of it, and what they own of the
#: consumer's output.
Three = tuple[Layout, Layout, Layout]


class Step(NamedTuple):
    """A step of a part, by the place of its movement or piece of work among those that cost alike;
    `present` in some cases.
    """

    phase: Phase
    moves: bool
    place: int
    present: Any = True


@dataclass
class Part:
    """The steps of a unit, or of edges that are alike.

    Attributes
    ----------
    held : list of Held
        Bytes of the unit, or of each edge.
    shape : tuple of int
        Of the cases of each.
    """

    steps: list[Step]
    held: list[Held]
    shape: tuple[int, ...]


class Lowering(NamedTuple):
    """Units and edges lowered; equal ones once.

    Attributes
    ----------
    node_keys, edge_keys : list
        What units and edges are equal by.
    nodes : dict
        From a unit's key to its part.
    edges : list
        The keys of edges that are alike, and their part.
    """

    node_keys: list[Any]
    edge_keys: list[Any]
    nodes: dict[Any, Part]
    edges: list[tuple[list[Any], Part]]
    freight: Freight
    works: list[Work]


#: Cases of movements that are kept, there and back.
MOST_MOVED = 2_000_000
#: The latest lowerings of all configurations; with the network and the units, so that no others get
#: their ids.
_kept: OrderedDict[Any, tuple[Lowering, Network, Sequence[Unit], int]] = OrderedDict()


class Lowerer:
    """Lowers units and edges of a plan's network; keeps what it knows of families and edges.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations and its
        machine do not.
    gamma : float
        ParaDL's memory reuse factor.
    """

    def __init__(self, network: Network, plan: Plan, gamma: float = 1.0) -> None:
        self.network, self.gamma = network, gamma
        self.plan = replace(plan, overlap="none", configs={}, machine={})
        self._families: dict[Any, Config] = {}

    def lower(self, units: Sequence[Unit], links: Sequence[Link],
              known: dict[Any, Any]) -> Lowering:
        """Lower units and edges, but those edges whose keys are known; all configurations of a
        network are kept.
        """
        whole = bool(units) and all(link.whole for link in links)
        key = (id(self.network), *_options(self.plan), self.gamma, len(links),
               *(id(unit.space) for unit in units))
        if whole and key in _kept:
            _kept.move_to_end(key)
            return _kept[key][0]
        found = self._lower(units, links, known)
        if whole and not known:
            _kept[key] = (found, self.network, units,
                          sum(load.tensors * load.cases for load in found.freight.loads))
            while sum(cases for *_, cases in _kept.values()) > MOST_MOVED:
                _kept.popitem(last=False)
        return found

    def _lower(self, units: Sequence[Unit], links: Sequence[Link],
               known: dict[Any, Any]) -> Lowering:
        loads, works, configs = list[Load](), list[Work](), dict[str, Config]()
        for unit in units:
            configs |= self.family(unit)
        # a collective's price is that of its cheapest algorithm, whichever it is
        b = Builder(self.network, replace(self.plan, configs=configs), None)
        node_keys, nodes = self._nodes(b, units, loads, works)
        edge_keys, edges = self._edges(b, links, known, loads)
        return Lowering(node_keys, edge_keys, nodes, edges, freight(loads, self.plan.ranks), works)

    def family(self, unit: Unit, chosen: Any = None) -> dict[str, Config]:
        """The configurations of a unit's layers as arrays; the same objects for equal spaces, so
        that equal layers share prices.
        """
        out = {}
        for i, layer in enumerate(unit.layers):
            if chosen is None or len(chosen) == len(unit.space):
                out[layer.name] = unit.space.family(i > 0)
                continue
            key = (id(unit.space), chosen.tobytes(), i > 0)
            if key not in self._families:
                self._families[key] = unit.space.config(chosen, i > 0)
            out[layer.name] = self._families[key]
        return out

    def _holds(self, memory: Memory) -> Any:
        """Bytes, with what every micro-batch keeps for its backward pass."""
        memory = memory.flying(self.plan.microbatches)
        return (memory if self.gamma == 1.0 else memory.scaled(self.gamma)).total_bytes

    # -- nodes -------------------------------------------------------------------------------------
    def _nodes(
        self, b: Builder, units: Sequence[Unit], loads: list[Load], works: list[Work]
    ) -> tuple[list[Any], dict[Any, Part]]:
        work, configs = Workload(self.network, b.plan, b.edges), b.plan.configs
        moves, done = dict[Any, int](), dict[Any, int]()
        keys = [tuple((self._signature(layer), configs[layer.name].key) for layer in unit.layers)
                for unit in units]
        different, lowered = dict[Any, Unit](), dict[Any, Part]()
        for key, unit in zip(keys, units, strict=True):
            different.setdefault(key, unit)
        for key, unit in different.items():
            before, cases = len(b.steps), len(unit.space)
            for layer in unit.layers:
                b.node(layer, self.plan.samples_of_a_pass)
            steps, wires = [], dict[str, tuple[Load, Move]]()
            for step in b.steps[before:]:
                if isinstance(step, Move):
                    place = moves.setdefault(step.key, len(loads))
                    if place == len(loads):
                        loads.append(Load.of(step, self.plan.ranks))
                    wires.setdefault(step.tensor, (loads[place], step))
                    steps.append(Step(step.phase, True, place))
                else:
                    place = done.setdefault((b.edges.key(step.layer, step.batch), step.op),
                                            len(works))
                    if place == len(works):
                        works.append(work.work(step.layer, step.op, step.batch))
                    steps.append(Step(step.phase, False, place, step.present))
            lowered[key] = Part(steps, [self._held(unit, b, list(wires.values()))], (cases,))
        return keys, lowered

    def _held(self, unit: Unit, b: Builder, wires: list[tuple[Load, Move]]) -> Held:
        """The bytes of a unit's configurations."""
        batch = self.plan.samples_of_a_pass

        def boxes(at: tuple[int, ...] | None) -> Any:
            total = sum((layer_memory(self.network, b.plan, layer, at=at) for layer in unit.layers),
                        NO_MEMORY)
            made = [owned(self.network, layer, b.plan.configs[layer.name], batch)
                    for layer in unit.layers]
            for producer, layer, have, then in zip(unit.layers, unit.layers[1:], made, made[1:],
                                                   strict=False):
                # nothing moves inside a unit
                e = Edge(producer, layer, 0, have, b.edges.needs(layer, batch)[0], NOTHING, NOTHING,
                         None)
                ends = Ends.of(e, then)
                total = total + edge_memory(self.network, self.plan, e,
                                            ends if at is None else ends.at(at))
            return self._holds(total)

        def wire(load: Load, step: Move, at: tuple[int, ...] | None) -> Any:
            held, wanted = (layout.largest_items for layout in (step.holder, step.wanter))
            if at is None:
                return load.wire_bytes(held, wanted)
            return load.wire_bytes(entry(held, at), entry(wanted, at), 0, at[0])

        def total(at: tuple[int, ...] | None) -> Any:
            return boxes(at) + sum(wire(*each, at) for each in wires)

        return Held(lambda: np.zeros(len(unit.space)) + total(None), total)

    def _signature(self, layer: Layer) -> Any:
        readers = len(self.network.consumers[layer.name])
        last = layer is self.network.layers[-1]
        return (self.network.signatures[layer.name], readers, last,
                any(name in self.network.trained for name in layer.inputs))

    # -- edges -------------------------------------------------------------------------------------
    def _edges(
        self, b: Builder, links: Sequence[Link], known: dict[Any, Any], loads: list[Load]
    ) -> tuple[list[Any], list[tuple[list[Any], Part]]]:
        """Edges are lowered together, their cases laid end to end."""
        keys, new, batch = [], dict[Any, tuple[Link, Three]](), self.plan.samples_of_a_pass
        for link in links:
            configs = self.family(link.producer, link.rows) | self.family(link.consumer, link.columns)
            tail, layer = link.producer.layers[-1], link.layer
            shared = len(self.network.consumers[tail.name]) > 1
            trains = tail.name in self.network.trained
            begins = begins_sum(self.network, tail, layer, link.which)
            flags = (isinstance(layer, Loss), in_place(layer, tail), passes_gradient(layer),
                     len(layer.inputs) > 1, shared, begins, trains)
            a, c = configs[tail.name], configs[layer.name]
            keys.append((self.network.signatures[tail.name], self.network.signatures[layer.name],
                         link.which, a.key, c.key, flags))
            if keys[-1] not in known and keys[-1] not in new:
                new[keys[-1]] = (link, (
                    owned(self.network, tail, a, batch), needed(self.network, layer, c, batch, link.which),
                    owned(self.network, layer, c, batch),
                ))
        if not new:
            return keys, []
        edges, names = list(new.values()), list(new)
        trained = [link.producer.layers[-1].name in self.network.trained for link, _ in edges]
        lines = Lines([(have, want) for _, (have, want, _) in edges])
        patterns, measures, out = Patterns(lines), Measures(lines, self.plan.ranks), []
        for block in _together(lines, patterns.alike(trained)):
            ways = patterns.of(block)
            for group, index in block.of(block.index):
                both = [way.of(group.cases) for way in ways]
                like = [_edge(*edges[i], *both) for i in group.members]
                moves = b.edge(like[0])
                steps = [Step(move.phase, True, len(loads) + i) for i, move in enumerate(moves)]
                wires = list(zip(moves, self._loads(moves, group, index, measures), strict=True))
                held = [self._held_at_edge(e, edges[i][1][2], wires, tensor, group.shape)
                        for tensor, (i, e) in enumerate(zip(group.members, like, strict=True))]
                out.append(([names[i] for i in group.members], Part(steps, held, group.shape)))
                loads += [load for _, load in wires]
        return keys, out

    def _loads(self, moves: list[Move], group: Alike, index: Any, measures: Measures) -> list[Load]:
        """The movements of edges that are alike, of every two configurations."""
        pairs = [measures.lines.pairs[i] for i in group.members]
        items = [np.array([_items(pair[side]) for pair in pairs]) for side in (0, 1)]
        lives, loads, moved = group.facing(group.have.config.ranks,
                                           group.want.config.ranks), list[Load](), None
        for move in moves:
            mine, way = move.pattern, int(move.holder is group.want)
            held, wanted = np.divmod(mine.at, group.shape[1])[::1 - 2 * way]
            sent = sent_items(mine.code[mine.at], items[way][:, held], items[1 - way][:, wanted])
            load = Load(len(pairs), mine, move.item_bytes, lives[way].ravel()[held], sent)
            if (mine.code == REDISTRIBUTE).any():
                moved = moved or (measures.amounts(group, index), measures.spans(group, index))
                load.moved = Moved(moved[0][way].reshape(4, load.tensors, -1), moved[1],
                                   lives[::1 - 2 * way])
            if len(load.halos):
                load.halo = measures.halo(group, index.reshape(len(index), -1)[:, load.halos])
            loads.append(load)
        return loads

    def _held_at_edge(self, e: Edge, output: Layout, wires: list[tuple[Move, Load]], tensor: int,
                      shape: tuple[int, int]) -> Held:
        """The bytes of an edge's pairs of configurations; it is one of several that are alike, and
        `output` is the consumer's.
        """
        own, need, made = (layout.largest_items for layout in (e.owned, e.needed, output))

        def total(at: tuple[Any, ...]) -> Any:
            row, column = at
            place = row * shape[1] + column
            one = None if isinstance(place, np.ndarray) else place
            codes = (way.code[place] for way in (e.forward, e.backward))
            ends = Ends(entry(need, (column,)), entry(own, (row,)), entry(made, (column,)), *codes)
            out = self._holds(edge_memory(self.network, self.plan, e, ends))
            for move, load in wires:
                holder, wanter = (ends.own, ends.need)[::1 if move.phase is Phase.FORWARD else -1]
                out = out + load.wire_bytes(holder, wanter, tensor, one)
            return out

        return Held(lambda: np.zeros(shape)
                    + total(np.divmod(np.arange(shape[0] * shape[1]), shape[1])).reshape(shape),
                    total)


def _edge(link: Link, layouts: Three, forward: Pattern, backward: Pattern) -> Edge:
    """An edge between two units, whose cases are every two of their configurations."""
    return Edge(link.producer.layers[-1], link.layer, link.which, *layouts[:2], forward, backward,
                None)


def _options(plan: Plan) -> tuple[Any, ...]:
    """All of a plan that its layers and edges follow."""
    return tuple(getattr(plan, f.name) for f in fields(plan) if f.name not in ("network", "configs", "machine", "strategy"))


def _items(layout: Layout) -> Any:
    items = layout.largest_items
    return items if isinstance(items, np.ndarray) else np.full(np.shape(layout.config.n), items)


def _together(lines: Lines, alike: list[list[int]]) -> Iterator[Block]:
    """Pairs of layouts that are alike, by about `TOGETHER` cases."""
    out, total = list[list[int]](), 0
    for like in alike:
        have, want = lines.pairs[like[0]]
        cases = int(np.size(have.config.n) * np.size(want.config.n))
        if out and total + cases > TOGETHER:
            yield Block(lines, out)
            out, total = [], 0
        out, total = [*out, like], total + cases
    yield Block(lines, out)
