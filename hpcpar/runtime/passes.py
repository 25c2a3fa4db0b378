"""A pass of samples through the network on one rank: arrays, and the layers that work on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.communicator import Communicator
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import Box, local, shape, whole_box
from hpcpar.plan.layout import computed
from hpcpar.plan.plan import Plan
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.build import build
from hpcpar.runtime.parameters import Parameters
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.memory_plan.allocation import MemoryPlan
from hpcpar.schedule.memory_plan.blocks import Blocks
from hpcpar.schedule.memory_plan.passes import PassPlan
from hpcpar.schedule.moments import moments_layout


@dataclass
class Pass:
    """The arrays of a micro-batch, of an FC pass, or of the mini-batch before these.

    Attributes
    ----------
    blocks, ops : dict
        By the layer's name.
    rows : numpy.ndarray
        Places in the mini-batch of the samples whose labels the loss layer reads here.
    labels : array
        Their labels [samples, ...], or the targets [samples, own outputs, ...].
    truth : tuple of slice
        The part of a sample's ground truth in `truth_box` that the loss layer reads here.
    sums : array
        (loss, correct samples) of this rank's share, float64.
    """

    plan: PassPlan
    blocks: dict[str, Blocks[Array]]
    ops: dict[str, Operator] = field(default_factory=dict)
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Array = None
    truth: tuple[slice, ...] = ()
    sums: Array = None

    @property
    def part(self) -> int:
        """Number of the micro-batch or FC pass."""
        return self.plan.part

    @property
    def samples(self) -> int:
        """Samples over all ranks."""
        return self.plan.samples.count

    @property
    def edges(self) -> dict[str, tuple[Edge, ...]]:
        """Edges into every layer, by its name."""
        return self.plan.edges

    def place(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the mini-batch of samples with these numbers in the pass."""
        return self.plan.samples.places(numbers)


class Passes:
    """Makes the arrays and ops of the passes of a memory plan.

    Attributes
    ----------
    all : list of Pass
        In the order of the memory plan's.
    truth_box : Box
        The part of a sample's ground truth that the rank reads.
    aside : dict
        Weights with a separate gradient buffer, by layer: for further micro-batches and for tied
        layers, whose gradients are then added.
    """

    def __init__(self, network: Network, plan: Plan, backend: Backend, communicator: Communicator,
                 memory: MemoryPlan, arena: Arena, parameters: Mapping[str, Parameters], seed: int,
                 training: bool) -> None:
        self.network, self.plan, self.backend, self.seed = network, plan, backend, seed
        self.memory, self._progress = memory, communicator.progress
        several = plan.microbatches > 1
        learning = {layer.name for layer in network.layers if training and layer.learns}
        self.aside = {name: p.aside() if name in learning and (several or name in network.tied)
                      else p for name, p in parameters.items()}
        self.aside |= {name: parameters[owner].aside() if owner in learning else parameters[owner]
                       for owner, names in network.tied.items() for name in names}
        self._places = {layer.name: i for i, layer in enumerate(network.layers)}
        self._ops: dict[tuple[str, int, int], Operator] = {}
        self.truth_box: Box = ()
        self.all = [self._bound(each, arena) for each in memory.passes.all]

    def find(self, layer: str, part: int) -> Pass:
        """The pass of a layer in a micro-batch or FC pass."""
        return self.all[self.memory.passes.number(layer, part)]

    @property
    def ops(self) -> list[Operator]:
        """Every op once."""
        return list(self._ops.values())

    def _bound(self, planned: PassPlan, arena: Arena) -> Pass:
        """A pass with its arrays and ops; passes whose layers use the same buffers share ops."""
        blocks = {name: b.map(arena.array) for name, b in planned.blocks.items()}
        made = Pass(planned, blocks, sums=self.backend.zeros((2,), np.float64))
        layers = [layer for layer in self.network.layers if layer.name in blocks and layer.inputs]
        for layer in layers:
            key = (layer.name, planned.slots.of_layer(layer.name), made.samples)
            if key not in self._ops:
                self._ops[key] = self._op(layer, made)
            made.ops[layer.name] = self._ops[key]
        loss, targets = layers[-1], self.network.loss.takes_targets
        if self.network.loss.outside:
            made.rows = made.place(np.arange(*made.edges[loss.name][0].needed.box(
                self.memory.rank)[0]))
        elif loss.is_loss:
            samples, *own = made.ops[loss.name].ctx.own
            mine = tuple(own if targets else own[1:])
            # of features, every rank is given the targets of all outputs
            self.truth_box = mine if len(own) > 1 else whole_box(self.network.truth_shape)
            made.rows = made.place(np.arange(*samples))
            made.truth = local(mine, self.truth_box)
            kind = self.plan.dtype if targets else np.int64
            made.labels = self.backend.zeros(shape((samples, *mine)), kind)
        return made

    def _op(self, layer: Layer, made: Pass) -> Operator:
        network, plan, rank = self.network, self.plan, self.memory.rank
        blocks = made.blocks[layer.name]
        own = computed(network, layer, plan.configs[layer.name], made.samples).box(rank)
        if layer.is_loss and not network.loss.outside and blocks.dxs[0] is None:
            blocks.dxs[0] = self.backend.zeros(blocks.x.shape, plan.dtype)
        needs = tuple(e.needed.box(rank) for e in made.edges[layer.name])
        moments = moments_layout(network, plan, layer, made.samples).box(
            rank) if layer.statistics else ()
        return build(Context(
            self.backend, layer, network.input_shapes(layer), made.samples, needs, own, blocks,
            self.aside.get(layer.name), self._progress, self.seed, self._places[layer.name],
            moments, plan.batch_norm == "local",
        ))
