"""Decides which views the steps of each pass on one rank move, read or write.

Passes are micro-batches, or the mini-batch and then OWT's FC passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import block
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.lower import samples_of
from hpcpar.schedule.memory_plan.blocks import BlockPlanner, Blocks, Slots
from hpcpar.schedule.memory_plan.views import Buffer, View
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.pipeline_order import firsts, in_flight
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase, Role, Step

EdgesOf = dict[str, tuple[Edge, ...]]


@dataclass(frozen=True)
class PassPlan:
    """One pass (a micro-batch or FC pass, `part`) through layers of the network, on one rank.

    `places` has the positions in the mini-batch of its samples, over all ranks; `edges` has the
    edges into each layer, and `blocks` each layer's blocks, by its name.
    """

    part: int
    places: NDArray[np.int64]
    edges: EdgesOf
    blocks: dict[str, Blocks[View]]
    slots: Slots

    @property
    def samples(self) -> int:
        """Samples of the pass, over all ranks."""
        return len(self.places)


def micro_batches_in_flight(network: Network, plan: Plan) -> dict[str, int]:
    """The most micro-batches whose activations a layer's stage keeps, by the layer's name."""
    starts = firsts(network, plan)
    of_stage = [in_flight(plan.order, len(starts), stage, plan.microbatches)
                for stage in range(len(starts))]
    return {layer.name: of_stage[starts.index(int(plan.configs[layer.name].first))]
            if len(starts) > 1 else of_stage[0] for layer in network.layers}


class PassPlans:
    """All passes of a plan on one rank: `all` has the micro-batches, or the mini-batch's pass up to
    the switch and then the FC passes.
    """

    def __init__(self, network: Network, plan: Plan, rank: int, edges: Edges,
                 training: bool) -> None:
        self.network, self.plan, self.rank, self.training = network, plan, rank, training
        #: One per key of `BlockPlanner`.
        self.buffers: dict[Hashable, Buffer] = {}
        self._edges = edges
        self._edges_of: dict[tuple[int, str], EdgesOf] = {}
        self._fc_layers: frozenset[str] = frozenset()
        self._flying = micro_batches_in_flight(network, plan)
        if plan.fc_passes == 1:
            self.all = [self._microbatch(m) for m in range(plan.microbatches)]
            return
        at = switch(network)
        self._fc_layers = frozenset(layer.name for layer in network.layers[at:])
        before = self._pass(network.layers[:at], 0, np.arange(plan.batch), Slots())
        self.all = [before, *(self._fc_pass(t, before) for t in range(plan.fc_passes))]

    def number(self, layer: str, part: int) -> int:
        """Index in `all` of a layer's pass, for a micro-batch or FC pass."""
        if self.plan.fc_passes == 1:
            return part
        return 1 + part if layer in self._fc_layers else 0

    def find(self, layer: str, part: int) -> PassPlan:
        """A layer's pass, for a micro-batch or FC pass."""
        return self.all[self.number(layer, part)]

    def _microbatch(self, part: int) -> PassPlan:
        """The pass of a micro-batch (or of an uncut mini-batch) through all layers."""
        begin = block(self.plan.batch, self.plan.microbatches, part)[0]
        count = samples_of(self.plan, part)
        # a stage has a slot per micro-batch in flight; the loss computes its gradient in the
        # forward pass, together with its value
        slots = Slots({layer: part % flying for layer, flying in self._flying.items()},
                      self.network.layers[-1].name)
        return self._pass(self.network.layers, part, np.arange(begin, begin + count), slots)

    def _fc_pass(self, part: int, before: PassPlan) -> PassPlan:
        """A pass of a part of the mini-batch through the layers from the switch on."""
        plan, layers = self.plan, self.network.layers[switch(self.network):]
        count, first = plan.batch // plan.fc_passes, layers[0]
        (e,) = self._edges.into(first, count)
        owners = 1 if plan.switch == "one" else int(plan.configs[e.producer.name].n)
        run = max(count // owners, 1)  # consecutive samples
        number, place = np.divmod(np.arange(count), run)
        places = (part + plan.fc_passes * number) * run + place
        fc_pass = self._pass(layers, part, places,
                             Slots({first.name: part}, first.name, only_inputs=True))
        if e.kind is None and plan.switch == "each":
            producer, consumer = before.blocks[e.producer.name], fc_pass.blocks[first.name]
            assert producer.out is not None
            consumer.xs[0] = self.rows_of(producer.out, part)
            consumer.dxs[0] = None if producer.dout is None else self.rows_of(producer.dout, part)
        return fc_pass

    def rows_of(self, whole: View, part: int) -> View:
        """An FC pass's samples in a block of the layer before the switch: a part of every rank's
        samples, or all of one rank's.
        """
        if self.plan.switch == "one":
            return whole
        rows = whole.shape[0] // self.plan.fc_passes
        return whole.rows(part * rows, (part + 1) * rows)

    def _pass(self, layers: Sequence[Layer], part: int, places: NDArray[np.int64],
              slots: Slots) -> PassPlan:
        edges = self._edges_into(layers, len(places))
        planner = BlockPlanner(self.network, self.plan, self.rank, layers, edges, len(places),
                               self.buffers, slots, self.training)
        return PassPlan(part, places, edges, planner.blocks, slots)

    def _edges_into(self, layers: Sequence[Layer], samples: int) -> EdgesOf:
        """The edges into each layer; passes with the same number of samples share them."""
        key = (samples, layers[0].name)
        if key not in self._edges_of:
            self._edges_of[key] = {layer.name: self._edges.into(layer, samples)
                                   for layer in layers if layer.inputs}
        return self._edges_of[key]

    # -- steps -------------------------------------------------------------------------------------
    def overwrites(self, part: int, sent: Comm) -> bool:
        """True where micro-batch `part` uses the same slot for the output that `sent` moves."""
        producer = self.network.by_name[sent.tensor.layer].inputs[sent.tensor.input]
        slots = [self.find(producer, p).slots.of_layer(producer) for p in (part, sent.part)]
        return slots[0] == slots[1]

    def moved(self, step: Comm) -> tuple[View, View]:
        """The views before and after a movement of an input, an output, or a gradient of these."""
        ref = step.tensor
        consumer_pass = self.find(ref.layer, step.part)
        blocks = consumer_pass.blocks[ref.layer]
        if ref.role is Role.OUTPUT:
            before, after = (blocks.dout, blocks.dy) if ref.gradient else (blocks.y, blocks.out)
            assert before is not None and after is not None
            return before, after
        e = consumer_pass.edges[ref.layer][ref.input]
        producer_pass = self.find(e.producer.name, step.part)
        producer = producer_pass.blocks[e.producer.name]
        if not ref.gradient:
            assert producer.out is not None
            rows = self._rows(producer.out, consumer_pass, producer_pass, step)
            return rows, blocks.xs[ref.input]
        dx = blocks.dxs[ref.input]
        assert dx is not None
        if step.kind is Kind.ALLREDUCE:
            return dx, dx
        if ref.input in blocks.arriving:
            return dx, blocks.arriving[ref.input]
        assert producer.dout is not None
        return dx, self._rows(producer.dout, consumer_pass, producer_pass, step)

    def _rows(self, whole: View, consumer_pass: PassPlan, producer_pass: PassPlan,
              step: Comm) -> View:
        """An FC pass's part of a block before the switch."""
        if consumer_pass is producer_pass or self.plan.fc_passes == 1:
            return whole
        if step.phase is Phase.BACKWARD and self.plan.switch == "one":
            assert step.group is not None
            # a pass has one rank's samples, so the other ranks need no result of the reduction
            if step.group.members(self.rank)[step.root] != self.rank:
                unused = consumer_pass.blocks[step.layer].dxs[0]
                assert unused is not None
                return unused
        return self.rows_of(whole, step.part)

    def touched(self, step: Step) -> tuple[Sequence[View | None], View | None]:
        """The views that a step of a pass reads or adds to, and the one that it computes anew."""
        if isinstance(step, Comm):
            if step.tensor.role is Role.MOMENTS:
                return (), None
            before, after = self.moved(step)
            return (before,), after
        if step.op is Op.ACCUMULATE:
            return self._accumulated(step), None
        if step.phase is Phase.BACKWARD:
            return self._backward(step), None
        blocks = self.find(step.layer, step.part).blocks[step.layer]
        # the loss, which has no y, computes its gradient with its value
        return (blocks.xs if blocks.y is not None else [*blocks.xs, *blocks.dxs]), blocks.y

    def _accumulated(self, step: Compute) -> list[View | None]:
        ref = step.tensor
        assert ref is not None
        blocks = self.find(ref.layer, step.part).blocks[ref.layer]
        total = self.find(step.layer, step.part).blocks[step.layer].dout
        return [total, blocks.arriving.get(ref.input), blocks.dxs[ref.input]]

    def _backward(self, step: Compute) -> list[View | None]:
        layer = self.network.by_name[step.layer]
        blocks = self.find(step.layer, step.part).blocks[step.layer]
        touched = [blocks.dy]
        if "input" in layer.backward_reads:
            touched += blocks.xs
        if "output" in layer.backward_reads:
            touched.append(blocks.y)
        if step.op is Op.BACKWARD:
            touched += [*blocks.dxs, *blocks.begins.values(), *blocks.clears]
        return touched
