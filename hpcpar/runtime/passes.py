"""A pass of samples through the network on one rank: its arrays and operators."""

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
    """The arrays of a micro-batch, of an FC pass, or of the mini-batch before the FC passes.

    Attributes
    ----------
    blocks, ops : dict
        Arrays and operator of each layer, by its name.
    rows : numpy.ndarray
        Positions in the mini-batch of the samples whose labels this rank's loss reads.
    labels : array
        Their labels [samples, ...], or their targets [samples, own outputs, ...].
    truth : tuple of slice
        The part of `truth_box` that this rank's loss reads.
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
        """Samples of the pass, over all ranks."""
        return self.plan.samples

    @property
    def edges(self) -> dict[str, tuple[Edge, ...]]:
        """Edges into each layer, by its name."""
        return self.plan.edges

    def place(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the mini-batch of the samples with these numbers in the pass."""
        return self.plan.places[numbers]


class Passes:
    """Creates the arrays and operators of a memory plan's passes.

    Attributes
    ----------
    all : list of Pass
        In the memory plan's order.
    truth_box : Box
        The part of a sample's ground truth that the rank reads.
    op_parameters : dict
        The parameters that each layer's operator uses. Their gradient buffer is separate where the
        gradients of several micro-batches or of tied layers are added later.
    """

    def __init__(self, network: Network, plan: Plan, backend: Backend, communicator: Communicator,
                 memory: MemoryPlan, arena: Arena, parameters: Mapping[str, Parameters], seed: int,
                 training: bool) -> None:
        self.network, self.plan, self.backend, self.seed = network, plan, backend, seed
        self.memory, self._progress = memory, communicator.progress
        several = plan.microbatches > 1
        learning = {layer.name for layer in network.layers if training and layer.learns}
        self.op_parameters = {
            name: p.with_separate_gradient()
            if name in learning and (several or name in network.tied) else p
            for name, p in parameters.items()}
        self.op_parameters |= {
            name: parameters[owner].with_separate_gradient()
            if owner in learning else parameters[owner]
            for owner, names in network.tied.items() for name in names}
        self._positions = {layer.name: i for i, layer in enumerate(network.layers)}
        self._ops: dict[tuple[str, int, int], Operator] = {}
        self.truth_box: Box = ()
        self.all = [self._bound(planned, arena) for planned in memory.passes.all]

    def find(self, layer: str, part: int) -> Pass:
        """A layer's pass, for a micro-batch or FC pass."""
        return self.all[self.memory.passes.number(layer, part)]

    @property
    def ops(self) -> list[Operator]:
        """Each operator once."""
        return list(self._ops.values())

    def _bound(self, planned: PassPlan, arena: Arena) -> Pass:
        """Create a pass's arrays; passes that share a layer's buffers share its operator."""
        blocks = {name: b.map(arena.array) for name, b in planned.blocks.items()}
        bound = Pass(planned, blocks, sums=self.backend.zeros((2,), np.float64))
        layers = [layer for layer in self.network.layers if layer.name in blocks and layer.inputs]
        for layer in layers:
            key = (layer.name, planned.slots.of_layer(layer.name), bound.samples)
            if key not in self._ops:
                self._ops[key] = self._op(layer, bound)
            bound.ops[layer.name] = self._ops[key]
        loss, targets = layers[-1], self.network.loss.takes_targets
        if self.network.loss.outside:
            bound.rows = bound.place(np.arange(*bound.edges[loss.name][0].needed.box(
                self.memory.passes.rank)[0]))
        elif loss.is_loss:
            samples, *outputs = bound.ops[loss.name].ctx.own
            truth = tuple(outputs if targets else outputs[1:])
            # where outputs are features, every rank reads the whole ground truth
            self.truth_box = truth if len(outputs) > 1 else whole_box(self.network.truth_shape)
            bound.rows = bound.place(np.arange(*samples))
            bound.truth = local(truth, self.truth_box)
            dtype = self.plan.dtype if targets else np.int64
            bound.labels = self.backend.zeros(shape((samples, *truth)), dtype)
        return bound

    def _op(self, layer: Layer, bound: Pass) -> Operator:
        network, plan, rank = self.network, self.plan, self.memory.passes.rank
        blocks = bound.blocks[layer.name]
        own = computed(network, layer, plan.configs[layer.name], bound.samples).box(rank)
        if layer.is_loss and not network.loss.outside and blocks.dxs[0] is None:
            blocks.dxs[0] = self.backend.zeros(blocks.x.shape, plan.formats.item_dtype)
        needs = tuple(e.needed.box(rank) for e in bound.edges[layer.name])
        moments = moments_layout(network, plan, layer, bound.samples).box(
            rank) if layer.statistics else ()
        return build(Context(
            self.backend, layer, network.input_shapes(layer), bound.samples, needs, own, blocks,
            self.op_parameters.get(layer.name), self._progress, self.seed,
            self._positions[layer.name], moments, plan.batch_norm == "local",
        ))
