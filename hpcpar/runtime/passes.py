"""A pass of samples through the network on one rank: blocks, and the layers that work on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.boxes import Box, block
from hpcpar.plan.layout import partial
from hpcpar.plan.plan import Plan
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.blocks import Blocks, Boxes, Storage
from hpcpar.runtime.ops.base import Context
from hpcpar.runtime.ops.base import Op as LayerOp
from hpcpar.runtime.ops.build import build
from hpcpar.runtime.parameters import Parameters
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.lower import samples_of
from hpcpar.schedule.pipeline_order import firsts, in_flight, switch


@dataclass
class Pass:
    """What a micro-batch, a turn, or the whole mini-batch has on this rank.

    Attributes
    ----------
    part : int
        Number of the micro-batch or turn.
    samples : int
        Over all ranks.
    edges : mapping
        Edges into every layer, by its name.
    sums : numpy.ndarray
        (loss, correct samples) of this rank's share.
    place : callable
        From numbers of samples of the pass to their places in the mini-batch.
    rows : numpy.ndarray
        Places of the samples whose labels the loss layer reads here.
    slot : callable
        The place of a layer's blocks among those of the micro-batches in flight.
    """

    part: int
    samples: int
    edges: dict[str, tuple[Edge, ...]]
    blocks: dict[str, Blocks]
    ops: dict[str, LayerOp]
    sums: np.ndarray
    place: Callable[[np.ndarray], np.ndarray]
    rows: np.ndarray
    slot: Callable[[str], int]
    labels: Array = None


class Passes:
    """Makes the passes of a plan on a rank, with blocks from an arena."""

    def __init__(
        self, network: Network, plan: Plan, backend: Backend, communicator: Communicator, parameters: Mapping[str, Parameters],
        seed: int, training: bool, arena: Arena,
    ) -> None:
        self.network, self.plan, self.backend, self.communicator = network, plan, backend, communicator
        self.rank, self.parameters, self.seed, self.training = communicator.world.rank, parameters, seed, training
        self._edges = Edges(network, plan)
        self._into: dict[Any, dict[str, tuple[Edge, ...]]] = {}
        self._box = Boxes(self.rank)
        self._arena = arena
        self._ops: dict[Any, LayerOp] = {}
        self._starts = firsts(network, plan)
        #: Where further micro-batches compute gradients of weights, before they are added.
        self.aside = {name: p.aside() for name, p in parameters.items()} if plan.microbatches > 1 and training else dict(parameters)

    def all(self) -> tuple[list[Pass], list[Pass]]:
        """The passes by micro-batch; or the mini-batch's before the switch, and after it the turns.
        """
        if self.plan.turns == 1:
            return [self.microbatch(m) for m in range(self.plan.microbatches)], []
        before = self.before_turns()
        return [before], [self.turn(t, before) for t in range(self.plan.turns)]

    # -- micro-batches -----------------------------------------------------------------------------
    def microbatch(self, part: int) -> Pass:
        """The pass of a micro-batch (of the mini-batch, where it is not cut) through all layers."""
        begin = block(int(self.plan.batch), self.plan.microbatches, part)[0]

        def slot(key: Any) -> int:
            return self.slot(key[0], part)

        def gradient_slot(key: Any) -> int:
            # the loss computes its gradient with its value, in the forward pass
            return slot(key[1:]) if key[1] == self.network.layers[-1].name else 0

        return self._pass(self.network.layers, part, samples_of(self.plan, part),
                          lambda v: begin + v, slot, gradient_slot)

    def slot(self, layer: str, part: int) -> int:
        """Which of the places that a layer's stage has for micro-batches in flight; their gradients
        need one.
        """
        first = int(self.plan.configs[layer].first)
        stage = self._starts.index(first) if len(self._starts) > 1 else 0
        return part % in_flight(self.plan.order, len(self._starts), stage, self.plan.microbatches)

    # -- turns -------------------------------------------------------------------------------------
    def before_turns(self) -> Pass:
        """The pass of the mini-batch through the layers before the switch."""
        return self._pass(self.network.layers[:switch(self.network)], 0, int(self.plan.batch),
                          lambda v: v, _one, _one)

    def turn(self, part: int, before: Pass) -> Pass:
        """A turn of the layers from the switch on; the switch's input and its gradient have a place
        for each turn.
        """
        plan, layers = self.plan, self.network.layers[switch(self.network):]
        samples = int(plan.batch) // plan.turns
        first = layers[0]
        (e,) = self._edges.into(first, samples)
        each = samples // int(plan.configs[e.producer.name].n)

        def place(virtual: np.ndarray) -> np.ndarray:
            """Where samples of a turn lie in the mini-batch."""
            if plan.switch == "one":
                return part * samples + virtual
            return (virtual // each * plan.turns + part) * each + virtual % each

        def slot(key: Any) -> int:
            return part if key == (first.name,) or (first.name in key[1:2]
                                                    and key[-1] == "x") else 0

        made = self._pass(layers, part, samples, place, slot, slot)
        if e.forward.kind is None and plan.switch == "each":
            made.blocks[first.name].xs[0] = self.slice_of(before.blocks[e.producer.name].out, part)
            made.blocks[first.name].dxs[0] = self.slice_of(before.blocks[e.producer.name].dout,
                                                           part)
        return made

    def slice_of(self, whole: Array, part: int) -> Array:
        """A turn's samples in a block of the layer before the switch: some of each rank's, or all
        of one rank's.
        """
        if whole is None or self.plan.switch == "one":
            return whole
        each = whole.shape[0] // self.plan.turns
        return whole[part * each:(part + 1) * each]

    # -- both --------------------------------------------------------------------------------------
    def _pass(
        self, layers: Sequence[Layer], part: int, samples: int, place: Callable[[np.ndarray], np.ndarray],
        slot: Callable[[Any], int], gradient_slot: Callable[[Any], int],
    ) -> Pass:
        """A pass whose arrays, by keys that begin with a layer's name, lie in slots."""
        network, plan = self.network, self.plan
        edges = self._edges_of(layers, samples)

        def activations(key: Any, shape: tuple[int, ...], zero: bool) -> Array:
            return self._arena(("value", *key, slot(key)), shape, zero)

        def gradients(key: Any, shape: tuple[int, ...], zero: bool) -> Array:
            return self._arena(("gradient", *key, gradient_slot(key)), shape, zero)

        storage = Storage(network, plan, layers, edges, samples, self.backend, self._box,
                          activations, gradients, self.training)
        return Pass(
            part, samples, edges, storage.blocks, {}, np.zeros(2), place, np.zeros(0, np.int64), lambda name: slot((name,))
        )

    def _edges_of(self, layers: Sequence[Layer], samples: int) -> dict[str, tuple[Edge, ...]]:
        """The edges into every layer; passes of as many samples through the same layers share them.
        """
        key = (samples, *(layer.name for layer in layers))
        if key not in self._into:
            self._into[key] = {layer.name: self._edges.into(layer, samples) for layer in layers
                               if layer.inputs}
        return self._into[key]

    def equip(self, made: Pass) -> None:
        """Give a pass the layers that work on its blocks; those that use the same blocks share
        them.
        """
        names = [layer for layer in self.network.layers if layer.name in made.blocks
                 and layer.inputs]
        for layer in names:
            key = (layer.name, made.slot(layer.name), made.samples)
            if key not in self._ops:
                self._ops[key] = self._op(layer, made)
            made.ops[layer.name] = self._ops[key]
        if isinstance(names[-1], Loss):
            first, last = made.ops[names[-1].name].ctx.own[0]
            made.rows = made.place(np.arange(first, last))

    def _op(self, layer: Layer, made: Pass) -> LayerOp:
        network, plan, edges, blocks = self.network, self.plan, made.edges[layer.name], made.blocks[
            layer.name]
        own = self._box(partial(network, layer, plan.configs[layer.name], made.samples))
        if isinstance(layer, Loss) and blocks.dxs[0] is None:
            blocks.dxs[0] = self.backend.zeros(blocks.x.shape, plan.dtype)
        needs: tuple[Box, ...] = tuple(self._box(e.needed) for e in edges)
        return build(Context(
            self.backend, layer, network.input_shapes(layer), made.samples, needs, own, blocks, self.aside.get(layer.name),
            self.communicator.progress, self.seed, network.layers.index(layer), plan.batch_norm == "local",
        ))


def _one(key: Any) -> int:
    """There is one place for all."""
    return 0
