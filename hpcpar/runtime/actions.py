"""The functions that a rank calls at the compute steps of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hpcpar.kernels.interface import Array, Backend, Bound, Tick
from hpcpar.kernels.numbers import Numbers
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import Box, intersect, local
from hpcpar.plan.plan import Plan
from hpcpar.runtime.loss_scale import LossScale
from hpcpar.runtime.ops.base import Operator
from hpcpar.runtime.optimizer import Rule
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Pass, Passes
from hpcpar.runtime.program import Program
from hpcpar.schedule.buckets import sums_known
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.interior import interior, strips
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.steps import Comm, Compute, Op, Phase

Action = Callable[[], None]


class Actions:
    """Binds compute steps to a rank's operators and weights.

    Parameters
    ----------
    sums : array
        [FC passes, LOSS_SUMS]; micro-batches add their loss and correct samples to the first two
        columns.
    tick : callable
        Lets communication progress during updates.

    Attributes
    ----------
    numbers : Numbers
        Numbers that change with every iteration, and the iteration's own.
    training : bool
        False in evaluations.
    resting : frozenset of str
        Layers that compute as in evaluations while others train: batch normalization by its running
        statistics, and dropout of nothing.
    momenta : dict
        Momentum of batch normalizations, by layer, in place of the layer's own.
    weight : float
        Factor of the loss: the samples of the batch divided by the samples that count.
    share : float
        Fraction of the samples, or of their pixels, that counts in the loss.
    loss_scale : LossScale or None
        None unless activations are float16.
    counts : array or None
        [3, classes] numbers of this rank's pixels by label, by prediction, and where both agree;
        None unless the loss classifies pixels.
    """

    def __init__(self, network: Network, plan: Plan, backend: Backend, rank: int, passes: Passes,
                 parameters: Mapping[str, Parameters], rule: Rule, sums: Array, tick: Tick) -> None:
        self.numbers = Numbers(backend, 2 * sum(len(p.ops) for p in passes.all) + 4)
        for op in passes.ops:
            op.ctx.numbers = self.numbers
        self.network, self.plan, self.backend, self.rank = network, plan, backend, rank
        self.passes, self.parameters, self.rule = passes, parameters, rule
        self.sums, self._tick = sums, tick
        self.loss_scale = LossScale(backend) if plan.formats.scaled else None
        self.training, self.weight, self.share = True, 1.0, 1.0
        self.resting: frozenset[str] = frozenset()
        self.momenta: Mapping[str, float] = {}
        classes = network.classes
        self.counts = backend.xp.zeros((3, classes), "i8") if network.labels_pixels else None
        names = [layer.name for layer in network.layers]
        self._images, self._loss_layer = names[0], names[-1]
        config = plan.configs[self._loss_layer]
        #: Only the first of several replicas counts the loss.
        self._counts_loss = config.mesh_axes["replicas"].of(rank - int(config.first)) == 0
        at = switch(network) if plan.fc_passes > 1 else len(names)
        self._fc_layers = frozenset(names[at:])
        self._first_fc = names[at] if plan.fc_passes > 1 else ""
        #: Layers with a weight gradient that is computed but not yet added to the sum.
        self.unfinished: dict[str, Pass] = {}
        #: Layers whose weights have not changed since they were copied for products.
        self.copied: set[str] = set()

    def begin(self, step: int, training: bool) -> None:
        """Begin iteration `step`, or an evaluation."""
        self.numbers.iteration, self.training = step, training
        self.copied.clear()
        if self.loss_scale is not None:
            self.rule.skipped = self.loss_scale.state.skipped

    def end(self) -> None:
        """End a training iteration."""
        if self.loss_scale is not None:
            self.loss_scale.end()

    def summed(self, step: Comm) -> Array:
        """The numbers that all ranks sum: of the loss, or votes."""
        if not step.tensor.gradient:
            return self.sums[step.part]
        assert self.loss_scale is not None
        return self.loss_scale.votes

    def action(self, step: Compute) -> Action:
        """The function to call at a compute step."""
        current = self.passes.find(step.layer, step.part)
        if step.op is Op.UPDATE:
            return partial(self._update, step.layer, step.part)
        if step.op is Op.UNSCALE:
            return partial(self._unscale, step.layer)
        if step.op is Op.ACCUMULATE:
            return self._accumulation(step)
        if step.layer == self._images:
            return partial(self._give_gradient, current)
        op = current.ops[step.layer]
        if step.op in (Op.INTERIOR, Op.BOUNDARY):
            run = self._convolution(step, current, op)
            return partial(self._compute, current, op, step.phase, run)
        if step.layer == self._loss_layer and not self.network.loss.outside:
            # the forward step computes value and gradient together
            return _nothing if step.op is Op.BACKWARD else partial(self._loss, current, step.op)
        if step.op is Op.BACKWARD:
            return self._backward(step, current)
        if step.op is Op.BACKWARD_WEIGHT:
            return partial(self._backward_weight, step.layer, current)
        run = op.statistics if step.op is Op.STATISTICS else op.forward
        return partial(self._compute, current, op, step.phase, run)

    def calls(self, step: Compute, action: Action) -> Sequence[Bound]:
        """The kernels that a step's action calls in a training iteration, for `fused`; none where
        there is more to do.
        """
        if isinstance(action, Bound):
            return (action,)
        if step.layer in (self._images, self._loss_layer) or step.phase is Phase.UPDATE or (
                step.op in (Op.INTERIOR, Op.BOUNDARY)):
            return ()
        current = self.passes.find(step.layer, step.part)
        op, blocks = current.ops[step.layer], current.blocks[step.layer]
        weights = self.passes.op_parameters.get(step.layer)
        if op.empty or weights is not self.parameters.get(step.layer) or (
                step.op is Op.BACKWARD and (blocks.clears or blocks.begins
                                            or step.layer == self._first_fc)):
            return ()
        return op.calls(step)

    def fused(self, launch: Action, single: Sequence[Action], steps: Sequence[Compute]) -> Action:
        """One action for steps with their `single` actions: `launch`, while training."""
        ops = [self.passes.find(step.layer, step.part).ops[step.layer] for step in steps]
        layers = {step.layer for step in steps}

        def act() -> None:
            if not self.training or layers & (self.resting | self.momenta.keys()):
                for action in single:
                    action()
                return
            for op in ops:
                self._refresh(op)
            launch()
            for step in steps:
                if step.op is Op.BACKWARD_WEIGHT:
                    self._computed(step.layer, self.passes.find(step.layer, step.part))
                elif step.op is Op.BACKWARD:
                    self._finish(step.layer, written=True)

        return act

    # -- forward -----------------------------------------------------------------------------------
    def _compute(self, current: Pass, op: Operator, phase: Phase, run: Action) -> None:
        self._prepare(current, op)
        op.ctx.recomputes = phase is Phase.RECOMPUTE
        run()

    def _prepare(self, current: Pass, op: Operator) -> None:
        """Set an operator's iteration and pass, because several passes may share the operator."""
        before_switch = self.plan.fc_passes > 1 and current is self.passes.all[0]
        parts = 1 if before_switch else max(self.plan.microbatches, self.plan.fc_passes)
        op.ctx.training = self.training and op.ctx.layer.name not in self.resting
        op.ctx.momentum = self.momenta.get(op.ctx.layer.name)
        op.ctx.parts, op.ctx.part = parts, current.part
        op.ctx.step = self.numbers.iteration * parts + current.part
        self._refresh(op)

    def _refresh(self, op: Operator) -> None:
        """Copy the weights for products, unless the copy has today's values."""
        owner = op.ctx.layer.weights_of or op.ctx.layer.name
        if op.ctx.parameters is not None and owner not in self.copied:
            op.ctx.parameters.refresh()
            self.copied.add(owner)

    def _convolution(self, step: Compute, current: Pass, op: Operator) -> Action:
        """Compute a convolution's interior while its halo travels, or the rest of its output."""
        e = current.edges[step.layer][0]
        inside = interior(e.owned, e.needed, op.ctx.own, self.rank)
        boxes = [inside] if step.op is Op.INTERIOR else strips(op.ctx.own, inside)

        def run() -> None:
            for box in boxes:
                op.interior(box)

        return run

    def _loss(self, current: Pass, operation: Op) -> None:
        op, several = current.ops[self._loss_layer], self.plan.fc_passes > 1
        self._prepare(current, op)
        op.ctx.labels, op.ctx.sums = current.labels, current.sums
        op.ctx.counts = self.counts if self._counts_loss else None
        op.ctx.share = self.share
        op.ctx.scale = self.weight / (current.samples if several else self.plan.batch)
        if self.loss_scale is not None and self.training:
            op.ctx.gradient_scale = self.loss_scale.state.scale
        if operation is Op.STATISTICS:
            op.statistics()
            return
        op.forward()
        if self._counts_loss:
            self.backend.accumulate(current.sums, self.sums[current.part if several else 0, :2])

    # -- backward ----------------------------------------------------------------------------------
    def _backward(self, step: Compute, current: Pass) -> Action:
        op, blocks = current.ops[step.layer], current.blocks[step.layer]
        edges = current.edges[step.layer]
        begins = [(dout, self._overlap(edges[which], dout, blocks.dxs[which]))
                  for which, dout in blocks.begins.items()]

        def action() -> None:
            for dout in blocks.clears:
                dout[...] = 0
            op.ctx.part = current.part
            op.backward()
            if step.layer == self._first_fc:  # weigh the pass's mean by its part of the batch
                self.backend.scale(blocks.dxs[0], 1.0 / self.plan.fc_passes)
            for dout, views in begins:
                dout[...] = 0
                if views is not None:
                    self.backend.copy(views[1], views[0])
            self._finish(step.layer, written=not op.empty)

        return action

    def _overlap(self, e: Edge, owner: Array, reader: Array) -> tuple[Array, Array] | None:
        """Views of the overlap in the owner's and in the reader's block."""
        own: Box = e.owned.box(self.rank)
        need: Box = e.needed.box(self.rank)
        both = intersect(own, need)
        return None if both is None else (owner[local(both, own)], reader[local(both, need)])

    def _accumulation(self, step: Compute) -> Action:
        """Add one reader's gradient to the owner's, for a tensor with several readers."""
        ref = step.tensor
        assert ref is not None
        reader = self.passes.find(ref.layer, step.part)
        blocks, e = reader.blocks[ref.layer], reader.edges[ref.layer][ref.input]
        dout = self.passes.find(step.layer, step.part).blocks[step.layer].dout
        if ref.input in blocks.arriving:
            return self.backend.bind("accumulate", blocks.arriving[ref.input], dout)
        views = self._overlap(e, dout, blocks.dxs[ref.input])
        return _nothing if views is None else self.backend.bind("accumulate", views[1], views[0])

    # -- weights -----------------------------------------------------------------------------------
    def _backward_weight(self, layer: str, current: Pass) -> None:
        self._finish(layer)
        current.ops[layer].backward_weight()
        self._computed(layer, current)

    def _give_gradient(self, current: Pass) -> None:
        """Pass the gradient of the images to the caller."""
        caller, blocks = current.ops[self._loss_layer].ctx.caller, current.blocks[self._images]
        assert caller is not None and blocks.dout is not None
        caller.take_gradient(current.part, blocks.dout)

    def _computed(self, layer: str, current: Pass) -> None:
        """Complete a weight gradient after its step, unless it needs sums over ranks."""
        self.unfinished[layer] = current
        if not sums_known(self.plan, self.network.by_name[layer]):
            self._finish(layer)

    def _finish(self, layer: str, written: bool = False) -> None:
        """Complete a layer's weight gradient; `written`: its backward step has written it. In the
        first micro-batch, the last of several tied layers starts the sum; all later gradients are
        added.
        """
        current = self.unfinished.pop(layer, None)
        if current is None:
            return
        if not written and sums_known(self.plan, self.network.by_name[layer]):
            current.ops[layer].finish_weight()
        owner = self.network.by_name[layer].weights_of or layer
        total, local = self.parameters.get(owner), self.passes.op_parameters.get(layer)
        if total is not None and local is not None and local is not total:
            begins = not current.part and layer == (owner, *self.network.tied.get(owner, ()))[-1]
            (self.backend.copy if begins else self.backend.accumulate)(local.grad, total.grad)

    def finish(self) -> None:
        """Complete the weight gradients that no update step completes."""
        for layer in list(self.unfinished):
            self._finish(layer)

    def _unscale(self, layer: str) -> None:
        self._finish(layer)
        p = self.parameters[layer]
        if p.updates and self.loss_scale is not None:
            self.loss_scale.unscale(p.updated(p.grad))

    def _update(self, layer: str, part: int) -> None:
        self._finish(layer)
        self.copied.discard(layer)
        p = self.parameters[layer]
        if p.updates and not (self.loss_scale is not None and self.loss_scale.skips):
            of_a_pass = layer in self._fc_layers
            updates = self.plan.fc_passes if of_a_pass else 1
            self.rule.update(self.backend, p, self.numbers, updates, part, self._tick, of_a_pass)

    def join_updates(self, program: Program) -> None:
        """Let the last of several updates without anything between them do all of them."""
        def size(step: int) -> int:
            return int(self.parameters[program.schedule.steps[step].layer].flat.size)

        for steps in program.neighbors(lambda step: step.phase is Phase.UPDATE):
            actions = [program.actions[i] for i in steps]
            if len(steps) > 1:
                program.join(partial(self._together, actions), {i: size(i) for i in steps})

    def _together(self, updates: list[Action]) -> None:
        with self.backend.together():
            for update in updates:
                update()


def _nothing() -> None:
    """The action of a step without local work."""
