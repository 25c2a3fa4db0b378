"""Actions of a rank at the compute steps of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from hpcpar.kernels.interface import Array, Backend, Tick
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import Box, intersect, local
from hpcpar.plan.plan import Plan
from hpcpar.runtime.ops.base import Operator
from hpcpar.runtime.optimizer import Rule
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Pass, Passes
from hpcpar.schedule.buckets import sums_known
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.interior import interior, strips
from hpcpar.schedule.pipeline_order import switch
from hpcpar.schedule.steps import Compute, Op, Phase

Action = Callable[[], None]


class Actions:
    """Binds compute steps to the ops and weights of a rank.

    Parameters
    ----------
    sums : array
        [FC passes, ...] loss and correct samples of the mini-batch first; micro-batches add to
        them.
    tick : callable
        Lets communication progress during updates.

    Attributes
    ----------
    step : int
        The iteration.
    training : bool
        False for evaluations.
    weight : float
        Factor of the loss: the samples of the batch, as a multiple of those that count.
    share : float
        Part of its samples, or of their pixels, that counts in the loss.
    counts : array or None
        [3, classes] this rank's pixels: labels, predictions, and both; None where the loss has no
        class for each pixel.
    """

    def __init__(self, network: Network, plan: Plan, backend: Backend, rank: int, passes: Passes,
                 parameters: Mapping[str, Parameters], rule: Rule, sums: Array, tick: Tick) -> None:
        self.network, self.plan, self.backend, self.rank = network, plan, backend, rank
        self.passes, self.parameters, self.rule = passes, parameters, rule
        self.sums, self._tick = sums, tick
        self.step, self.training, self.weight, self.share = 0, True, 1.0, 1.0
        classes = network.classes
        self.counts = backend.xp.zeros((3, classes), "i8") if network.labels_pixels else None
        names = [layer.name for layer in network.layers]
        self._loss_layer = names[-1]
        config = plan.configs[self._loss_layer]
        #: Only one of several replicas counts the loss.
        self._counts = config.mesh_axes["replicas"].of(rank - int(config.first)) == 0
        at = switch(network) if plan.fc_passes > 1 else len(names)
        self._fc_layers = frozenset(names[at:])
        self._first_fc = names[at] if plan.fc_passes > 1 else ""
        #: Layers whose gradient of the weights is computed, but not yet added.
        self._unfinished: dict[str, Pass] = {}

    def of(self, step: Compute) -> Action:
        """The action of a compute step."""
        here = self.passes.find(step.layer, step.part)
        if step.op is Op.UPDATE:
            return partial(self._update, step.layer, step.part)
        if step.op is Op.ACCUMULATE:
            return self._accumulation(step)
        op = here.ops[step.layer]
        if step.op in (Op.INTERIOR, Op.BOUNDARY):
            return partial(self._compute, here, op, step.phase, self._convolution(step, here, op))
        if step.layer == self._loss_layer and not self.network.loss.outside:
            # its gradient is computed with its value
            return _nothing if step.op is Op.BACKWARD else partial(self._loss, here, step.op)
        if step.op is Op.BACKWARD:
            return self._backward(step, here)
        if step.op is Op.BACKWARD_WEIGHT:
            return partial(self._backward_weight, step.layer, here)
        run = op.statistics if step.op is Op.STATISTICS else op.forward
        return partial(self._compute, here, op, step.phase, run)

    # -- forward -----------------------------------------------------------------------------------
    def _compute(self, here: Pass, op: Operator, phase: Phase, run: Action) -> None:
        self._prepare(here, op)
        op.ctx.again = phase is Phase.RECOMPUTE
        run()

    def _prepare(self, here: Pass, op: Operator) -> None:
        """Tell an op the iteration and the pass: several passes may share it."""
        alone = self.plan.fc_passes > 1 and here is self.passes.all[0]
        parts = 1 if alone else max(self.plan.microbatches, self.plan.fc_passes)
        op.ctx.training, op.ctx.step = self.training, self.step * parts + here.part
        op.ctx.part = here.part

    def _convolution(self, step: Compute, here: Pass, op: Operator) -> Action:
        """The interior of a convolution, while its halo travels, or the rest."""
        e = here.edges[step.layer][0]
        inside = interior(e.owned, e.needed, op.ctx.own, self.rank)
        boxes = [inside] if step.op is Op.INTERIOR else strips(op.ctx.own, inside)

        def run() -> None:
            for box in boxes:
                op.interior(box)

        return run

    def _loss(self, here: Pass, what: Op) -> None:
        op = here.ops[self._loss_layer]
        self._prepare(here, op)
        op.ctx.labels, op.ctx.sums = here.labels, here.sums
        op.ctx.counts = self.counts if self._counts else None
        op.ctx.share = self.share
        op.ctx.scale = self.weight / (here.samples if self.plan.fc_passes > 1 else self.plan.batch)
        if what is Op.STATISTICS:
            op.statistics()
            return
        op.forward()
        if self._counts:
            of_pass = here.part if self.plan.fc_passes > 1 else 0
            self.backend.accumulate(here.sums, self.sums[of_pass, :2])

    # -- backward ----------------------------------------------------------------------------------
    def _backward(self, step: Compute, here: Pass) -> Action:
        op, blocks = here.ops[step.layer], here.blocks[step.layer]
        edges = here.edges[step.layer]
        begins = [(dout, self._overlap(edges[which], dout, blocks.dxs[which]))
                  for which, dout in blocks.begins.items()]

        def action() -> None:
            for dout in blocks.clears:
                dout[...] = 0
            op.ctx.part = here.part
            op.backward()
            if step.layer == self._first_fc:  # an FC pass's mean counts for its part of the batch
                self.backend.scale(blocks.dxs[0], 1.0 / self.plan.fc_passes)
            for dout, views in begins:
                dout[...] = 0
                if views is not None:
                    self.backend.copy(views[1], views[0])
            self._finish(step.layer)

        return action

    def _overlap(self, e: Edge, owner: Array, reader: Array) -> tuple[Array, Array] | None:
        """The views of the items that an owner's and a reader's block have in common."""
        own: Box = e.owned.box(self.rank)
        need: Box = e.needed.box(self.rank)
        both = intersect(own, need)
        return None if both is None else (owner[local(both, own)], reader[local(both, need)])

    def _accumulation(self, step: Compute) -> Action:
        """Adds the gradient from one of several readers to the owner's."""
        ref = step.tensor
        assert ref is not None
        here = self.passes.find(ref.layer, step.part)
        blocks, e = here.blocks[ref.layer], here.edges[ref.layer][ref.input]
        dout = self.passes.find(step.layer, step.part).blocks[step.layer].dout
        if ref.input in blocks.arriving:
            return partial(self.backend.accumulate, blocks.arriving[ref.input], dout)
        views = self._overlap(e, dout, blocks.dxs[ref.input])
        return _nothing if views is None else partial(self.backend.accumulate, views[1], views[0])

    # -- weights -----------------------------------------------------------------------------------
    def _backward_weight(self, layer: str, here: Pass) -> None:
        self._finish(layer)
        here.ops[layer].backward_weight()
        self._unfinished[layer] = here
        if not self._synchronised(layer):
            self._finish(layer)

    def _synchronised(self, layer: str) -> bool:
        return sums_known(self.plan, self.network.by_name[layer])

    def _finish(self, layer: str) -> None:
        """Complete a micro-batch's gradient of a layer's weights: the first begins the sum, the
        others, and those of layers with the same weights, are added.
        """
        here = self._unfinished.pop(layer, None)
        if here is None:
            return
        if self._synchronised(layer):
            here.ops[layer].finish_weight()
        owner = self.network.by_name[layer].weights_of or layer
        total, aside = self.parameters.get(owner), self.passes.aside.get(layer)
        if total is not None and aside is not None and aside is not total:
            begins = not here.part and layer == (owner, *self.network.tied.get(owner, ()))[-1]
            (self.backend.copy if begins else self.backend.accumulate)(aside.grad, total.grad)

    def finish(self) -> None:
        """Complete the gradients of all weights that no step updates."""
        for layer in list(self._unfinished):
            self._finish(layer)

    def _update(self, layer: str, part: int) -> None:
        self._finish(layer)
        p = self.parameters[layer]
        if p.updates:
            of_a_pass = layer in self._fc_layers
            updates = self.plan.fc_passes if of_a_pass else 1
            self.rule.update(self.backend, p, self.step * updates + part, self._tick, of_a_pass)


def _nothing() -> None:
    """For steps without local work."""
