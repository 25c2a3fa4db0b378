"""Decides what each configuration of a layer or edge costs, for the layer-wise search.

Layers and edges go through the same lowering and pricing as any prediction. The configurations of a
layer form a family of plans. The family of an edge combines all configurations of the producer
(rows) with all configurations of the consumer (columns).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.memory.memory import NOTHING as NO_MEMORY
from hpcpar.cost.memory.memory import Memory, edge_memory, layer_memory, wire_bytes
from hpcpar.cost.network.algorithm_choice import cheapest_price, with_hosts
from hpcpar.cost.network.contention import NetworkModels, contended
from hpcpar.cost.step_prices import StepPricer
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config, Flags, Numbers
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.aliasing import begins_sum, in_place
from hpcpar.schedule.builder import Builder
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.steps import NOTHING, PASSES, Comm, Phase, Step, TensorRef
from hpcpar.search.tables import Link, Table, Unit


class TableMaker:
    """Prices the units and edges of a network; equal ones are priced once.

    Parameters
    ----------
    plan : Plan
        Provides the options (number format, collectives, synchronization, ...) but not the
        configurations.
    contention, gamma, networks, training
        As in `hpcpar.cost.price_family.price_steps`.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine, networks: NetworkModels,
                 contention: float | None = None, gamma: float = 1.0,
                 training: bool = True) -> None:
        self.network, self.machine, self.gamma = network, machine, gamma
        self.training = training
        self.plan = replace(plan, overlap=Overlap.NONE, configs={}, machine=None)
        self.network_model = networks[contended(machine, contention)]
        # the choice of algorithms ignores a given contention
        self.choose = with_hosts(
            cheapest_price(self.network_model, networks[machine], plan.collectives), plan,
            self.network_model)
        self._units: dict[Hashable, Table] = {}
        self._edges: dict[Hashable, Table] = {}

    def tables(self, units: Sequence[Unit], links: Sequence[Link]
               ) -> tuple[list[Table], list[Table]]:
        """OptCNN's tC and tS of units, and tX of edges."""
        return [self._of_unit(unit) for unit in units], [self._of_edge(link) for link in links]

    def _builder(self, configs: dict[str, Config]) -> Builder:
        return Builder(self.network, replace(self.plan, configs=configs), self.choose,
                       self.training)

    # -- units -------------------------------------------------------------------------------------
    def _of_unit(self, unit: Unit) -> Table:
        configs = _configs(unit, None)
        key = tuple((self._traits(layer), configs[layer.name].key) for layer in unit.layers)
        if key not in self._units:
            b = self._builder(configs)
            for layer in unit.layers:
                b.node(layer, self.plan.samples_of_a_pass)
            memory = self._unit_memory(unit, b)
            self._units[key] = self._table(b, b.steps, (len(unit.space),), memory)
        return self._units[key]

    def _traits(self, layer: Layer) -> tuple[Hashable, ...]:
        """A key that is equal for layers with equal tables."""
        readers = len(self.network.consumers[layer.name])
        trains = any(name in self.network.trained for name in layer.inputs)
        last = layer is self.network.layers[-1]
        return self.network.signatures[layer.name], readers, last, trains

    def _unit_memory(self, unit: Unit, b: Builder) -> Memory:
        """The memory of a unit's layers and of the edges between them, which move no data."""
        batch = self.plan.samples_of_a_pass
        total = NO_MEMORY
        for layer in unit.layers:
            total = total + layer_memory(self.network, b.plan, layer, self.training)
        for producer, layer in zip(unit.layers, unit.layers[1:], strict=False):
            own = owned(self.network, producer, b.plan.configs[producer.name], batch)
            need = b.edges.needs(layer, batch)[0]
            e = Edge(producer, layer, 0, own, need, NOTHING, NOTHING, NOTHING, None)
            total = total + edge_memory(self.network, b.plan, e, self.training)
        return total

    # -- edges -------------------------------------------------------------------------------------
    def _of_edge(self, link: Link) -> Table:
        tail, layer = link.producer.layers[-1], link.layer
        rows = _configs(link.producer, link.rows)[tail.name]
        columns = _configs(link.consumer, link.columns)[layer.name]
        key = (self._edge_traits(link), rows.key, columns.key)
        if key not in self._edges:
            b = self._builder({tail.name: rows.reshaped((-1, 1)),
                               layer.name: columns.reshaped((1, -1))})
            e = b.edges.edge(layer, link.which, self.plan.samples_of_a_pass)
            b.edge(e)
            shape = (np.size(rows.n), np.size(columns.n))
            memory = edge_memory(self.network, b.plan, e, self.training)
            self._edges[key] = self._table(b, b.steps, shape, memory)
        return self._edges[key]

    def _edge_traits(self, link: Link) -> tuple[Hashable, ...]:
        """A key that is equal for edges with equal tables."""
        network, tail, layer = self.network, link.producer.layers[-1], link.layer
        return (
            network.signatures[tail.name], network.signatures[layer.name], link.which,
            layer.is_loss, in_place(layer, tail), layer.in_place,
            len(layer.inputs) > 1, len(network.consumers[tail.name]) > 1,
            begins_sum(network, tail, layer, link.which), tail.name in network.trained,
        )

    # -- both --------------------------------------------------------------------------------------
    def _table(self, b: Builder, steps: Sequence[Step], shape: tuple[int, ...],
               memory: Memory) -> Table:
        """Sum the time and the buffers of steps."""
        pricer = StepPricer(self.network, b.plan, self.machine, self.network_model, b.edges)
        seconds, hideable = np.zeros(shape), np.zeros(shape)
        measured: Flags = np.bool_(bool(self.machine.compute))
        buffers: dict[TensorRef, Numbers] = {}
        for step in steps:
            price = pricer.price(step)
            seconds += (self.plan.microbatches if step.phase in PASSES else 1) * price.seconds
            if isinstance(step, Comm):
                wire = wire_bytes(step, price.through_bytes)
                buffers[step.tensor] = np.maximum(buffers.get(step.tensor, 0), wire)
                if step.phase is Phase.GRADIENT:
                    hideable += price.seconds
            elif self.machine.compute:
                measured = measured & (price.measured | np.equal(price.seconds, 0))
        memory = memory.flying(self.plan.microbatches)
        if self.gamma != 1.0:
            memory = memory.scaled(self.gamma)
        n_bytes = memory.total_bytes + sum(buffers.values())
        return Table(seconds, np.zeros(shape) + n_bytes, hideable, measured)


def _configs(unit: Unit, chosen: NDArray[np.int64] | None) -> dict[str, Config]:
    """Families of the configurations of a unit's layers: the chosen rows, or all."""
    rows = slice(None) if chosen is None else chosen
    return {layer.name: unit.space.config(rows, i > 0) for i, layer in enumerate(unit.layers)}
