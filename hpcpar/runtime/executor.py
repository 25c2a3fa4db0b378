"""The executor: runs a schedule, step by step, on this rank's blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.comm import message_buffers
from hpcpar.comm.buffers import Buffers
from hpcpar.comm.communicator import Communicator
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Layer, MeanSquaredError
from hpcpar.plan.boxes import Box, block, intersect, local
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.liveness import Lifetimes
from hpcpar.runtime.nonfinite import Finite, first_of_a_pass
from hpcpar.runtime.optimizer import Rule
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Pass, Passes
from hpcpar.runtime.program import Program
from hpcpar.runtime.tensors import Tensors, which_input
from hpcpar.schedule.interior import interior, strips
from hpcpar.schedule.pipeline_order import switch
from hpcpar.schedule.steps import Comm, Compute, Op, Phase, Schedule

#: Steps of the forward-only schedule use tags beyond those of the training schedule.
_TAGS = 1 << 14


@dataclass(frozen=True)
class Used:
    """What this rank's blocks and messages need at once at the most, and the pieces of memory in
    which they are laid out.
    """

    alive_bytes: int
    blocks_bytes: int
    flying_bytes: int
    messages_bytes: int


class Executor:
    """One rank of a run: blocks, weights, ops and the bound schedules.

    Parameters
    ----------
    schedule : Schedule, optional
        The training iteration; without it there are no gradients.
    evaluation : Schedule, optional
        The forward pass alone, for `evaluate`.
    seed : int
        Fixes initial weights and dropout.

    Attributes
    ----------
    passes : list of Pass
        By micro-batch; or the mini-batch's before the switch, and after it `turns`.
    image_box : Box
        What this rank reads of a sample.
    image_rows : numpy.ndarray
        Places in the mini-batch of the samples that it reads.
    memory : Used
    """

    def __init__(
        self, network: Network, plan: Plan, schedule: Schedule | None, communicator: Communicator, backend: Backend, seed: int,
        evaluation: Schedule | None = None,
    ) -> None:
        self.network, self.plan, self.backend, self.communicator = network, plan, backend, communicator
        self.rank = communicator.world.rank
        self.rule = Rule(plan.optimizer)
        self._buckets: dict[int, Array] = {}
        places = self._place_gradients(schedule)
        self.parameters = {layer.name: self._parameters(layer, schedule, seed,
                                                        places.get(layer.name))
                           for layer in network.weighted}
        self._place = {layer.name: i for i, layer in enumerate(network.layers)}
        self._last = network.layers[-1]
        self._switch = switch(network) if plan.turns > 1 else len(network.layers)
        arena = Arena(backend, plan.dtype)
        self._make = make = Passes(network, plan, backend, communicator, self.parameters, seed,
                                   schedule is not None, arena)
        self._sums = np.zeros(2)
        tensors = Tensors(network, plan, self.rank, make, self.parameters, self._buckets,
                          self._sums, self.part, lambda: self.turns)
        # first to learn what is alive when, then in earnest
        self.passes, self.turns = make.all()
        arena.sized()
        self.training, self.evaluation = (None if s is None else self._program(s)
                                          for s in (schedule, evaluation))
        programs = [p for p in (self.training, self.evaluation) if p is not None]
        lifetimes = Lifetimes(arena, self.part, tensors.of, network.by_name, not self.turns)
        for program in programs:
            images = [(self.passes[part].blocks[network.layers[0].name].out, part, i)
                      for i, part in self._loads(program).items()]
            lifetimes.add(program, images)
        outputs = lifetimes.outputs([*self.passes, *self.turns])
        arena.place(lifetimes.alive)
        self.passes, self.turns = make.all()
        for p in (*self.passes, *self.turns):
            make.equip(p)
        last = (self.turns or self.passes)[0].ops[self._last.name]
        self._targets = last.ctx.own[1] if isinstance(self._last, MeanSquaredError) else None
        for p in self.turns or self.passes:
            wide = () if self._targets is None else (self._targets[1] - self._targets[0],)
            p.labels = backend.zeros((len(p.rows), *wide), np.int64 if self._targets is None
                                     else plan.dtype)
        self._unfinished: dict[str, Pass] = {}
        self._images: np.ndarray = np.zeros(0)
        self._split: list[tuple[int, int]] = []
        self._set_images()
        self.step, self._train = 0, True
        for program, begins in zip(programs, lifetimes.begins, strict=True):
            self._act(program)
            for key in arena.stained:
                for i in begins.get(key, ()):
                    program.clears.setdefault(i, []).append(arena[key])
        messages_bytes, flying_bytes = self._bind(programs, tensors)
        self.memory = Used(arena.alive_bytes, arena.laid_bytes, flying_bytes, messages_bytes)
        self._finite = Finite(self, self.training, outputs) if self.training is not None else None

    def _place_gradients(self, schedule: Schedule | None) -> dict[str, Array]:
        """Gradients that are summed together lie side by side."""
        out: dict[str, Array] = {}
        for step in schedule.comms if schedule is not None else ():
            if len(step.covers) > 1 and step.holder.holds(self.rank):
                whole = self._buckets[step.index] = self.backend.zeros(
                    (step.holder.items(self.rank),), self.plan.dtype)
                at = 0
                for name in step.covers:
                    layer = self.network.by_name[name]
                    size = layer.parameters(self.network.input_shape(layer))
                    out[name], at = whole[at:at + size], at + size
        return out

    def _parameters(self, layer: Layer, schedule: Schedule | None, seed: int,
                    grad: Array) -> Parameters:
        reduced, updates = False, True
        for step in schedule.comms if schedule is not None else ():
            if layer.name in step.covers:
                reduced = True
                if self.plan.synchronisation == "server":
                    assert step.group is not None
                    updates = step.holder.holds(self.rank) and step.group.members(self.rank)[
                        step.root] == self.rank
        updates = updates and schedule is not None
        return Parameters(self.network, layer, self.plan, self.backend, self.rank, seed, reduced,
                          updates, grad)

    def _set_images(self) -> None:
        """Which samples this rank reads, by micro-batch."""
        first = self.network.layers[0]
        layouts = [owned(self.network, first, self.plan.configs[first.name], p.samples)
                   for p in self.passes]
        self.image_box: Box = layouts[0].box(self.rank)[1:]
        rows: list[np.ndarray] = []
        for m, layout in enumerate(layouts):
            begin = block(int(self.plan.batch), len(self.passes), m)[0]
            start, stop = layout.box(self.rank)[0]
            before = sum(len(r) for r in rows)
            self._split.append((before, before + stop - start))
            rows.append(np.arange(begin + start, begin + stop))
        self.image_rows = np.concatenate(rows)

    @property
    def memory_bytes(self) -> int:
        """Of all arrays of this rank: weights with their gradients and the optimiser's state,
        blocks, what layers keep, messages.
        """
        aside = [p for p in self._make.aside.values() if p not in self.parameters.values()]
        weights = [a for p in self.parameters.values() for a in (p.flat, p.grad, *p.state, p.buffers)] + [p.grad for p in aside]
        ops = {id(op): op for p in (*self.passes, *self.turns) for op in p.ops.values()}
        held = sum(int(a.nbytes) for a in weights if a is not None) + sum(op.kept_bytes for op in ops.values())
        return held + self.memory.blocks_bytes + self.memory.messages_bytes

    def part(self, layer: str, number: int) -> Pass:
        """The pass of a layer in a micro-batch or turn."""
        if self.turns:
            return self.passes[0] if self._place[layer] < self._switch else self.turns[number]
        return self.passes[number]

    def lives(self, layer: str) -> bool:
        """True where this rank is one of the layer's."""
        config = self.plan.configs[layer]
        return bool(config.first <= self.rank < config.first + config.ranks)

    # -- binding -----------------------------------------------------------------------------------
    def _program(self, schedule: Schedule) -> Program:
        """The steps that this rank takes part in."""
        mine = [s.index for s in schedule.steps
                if (s.concerns(self.rank) if isinstance(s, Comm) else self.lives(s.layer))]
        return Program(schedule, self.communicator, mine, self._last.name, self._reuses)

    def _loads(self, program: Program) -> dict[int, int]:
        """The step before which images lie in place, by micro-batch: the first that reads them; of
        turns, before all.
        """
        if self.turns:
            return {0: 0}
        out: dict[int, int] = {}
        reads = set(self.network.consumers[self.network.layers[0].name])
        for i in program.mine:
            step = program.schedule.steps[i]
            if step.phase is Phase.FORWARD and step.layer in reads and step.part not in out.values():
                out[i] = step.part
        return out

    def _act(self, program: Program) -> None:
        """Bind the compute steps."""
        for i in program.mine:
            step = program.schedule.steps[i]
            if isinstance(step, Compute):
                program.actions[i] = self._action(step)
        program.before |= {} if self.turns else {i: self._loader(part)
                                                 for i, part in self._loads(program).items()}

    def _bind(self, programs: Sequence[Program], tensors: Tensors) -> tuple[int, int]:
        """Bind the communication steps; returns bytes as `message_buffers.place`."""
        found: list[tuple[Program, Buffers, int]] = []
        moment = 0
        for program in programs:
            for i, until in program.until.items():
                step = program.schedule.steps[i]
                assert isinstance(step, Comm)
                alive = ((1 << (until - i)) - 1) << (moment + i)
                found.append((program, self.communicator.prepare(step, *tensors.of(step)), alive))
            moment += len(program.schedule.steps) + 1
        sizes = message_buffers.place(self.backend,
                                      [(buffers, alive) for _, buffers, alive in found])
        for program, buffers, _ in found:
            tags = 0 if program is self.training else _TAGS
            program.transfers[buffers.step.index] = self.communicator.connect(buffers, tags)
        return sizes

    def _reuses(self, sent: Comm, part: int) -> bool:
        """True where the output that was sent has the same place in another micro-batch."""
        producer = self.part(sent.layer,
                             part).edges[sent.layer][which_input(sent.tensor)].producer.name
        return self._make.slot(producer, part) == self._make.slot(producer, sent.part)

    def _loader(self, part: int) -> Callable[[], None]:
        """Puts a micro-batch's images in place when its turn comes."""
        target = self.passes[part].blocks[self.network.layers[0].name].out
        a, b = self._split[part]
        return lambda: self.backend.to_device(self._images[a:b], target)

    def _action(self, step: Compute) -> Callable[[], None]:
        """What a compute step calls."""
        here = self.part(step.layer, step.part)
        if step.op is Op.UPDATE:
            return lambda: self._update(step.layer, step.part)
        if step.op is Op.ACCUMULATE:
            return self._accumulation(step)
        op = here.ops[step.layer]
        run: Callable[[], Any]
        if step.op in (Op.INTERIOR, Op.BOUNDARY):
            e = here.edges[step.layer][0]
            inside = interior(e.owned, e.needed, op.ctx.own, self.rank)
            boxes = [inside] if step.op is Op.INTERIOR else strips(op.ctx.own, inside)

            def run() -> None:
                for box in boxes:
                    op.interior(box)
        elif step.layer == self._last.name:
            if step.op is Op.BACKWARD:
                return _nothing  # done with the loss itself
            return lambda: self._loss(here)
        elif step.op is Op.BACKWARD:
            return self._backward(step, here)
        elif step.op is Op.BACKWARD_WEIGHT:
            return lambda: self._backward_weight(step.layer, here)
        else:
            run = {Op.FORWARD: op.forward, Op.STATISTICS: op.statistics}[step.op]

        def action() -> None:
            self._tell(here, op)
            op.ctx.again = step.phase is Phase.RECOMPUTE
            run()

        return action

    def _tell(self, here: Pass, op: Any) -> None:
        """What changes from iteration to iteration, and from pass to pass through one op."""
        ctx, parts = op.ctx, max(self.plan.microbatches, self.plan.turns)
        ctx.training, ctx.step = self._train, self.step * (parts if here is not self.passes[0]
                                                           or not self.turns else 1) + here.part

    # -- steps -------------------------------------------------------------------------------------
    def _loss(self, here: Pass) -> None:
        op = here.ops[self._last.name]
        self._tell(here, op)
        op.ctx.labels, op.ctx.sums = here.labels, here.sums
        op.ctx.scale = 1.0 / (here.samples if self.turns else int(self.plan.batch))
        op.forward()
        if not self.turns:
            self._sums += here.sums

    def _backward(self, step: Compute, here: Pass) -> Callable[[], None]:
        op, blocks = here.ops[step.layer], here.blocks[step.layer]
        shrink = bool(self.turns) and self._place[step.layer] == self._switch
        adds = []
        for which, dout in blocks.begins.items():
            e = here.edges[step.layer][which]
            adds.append((dout, self._common(e.owned.box(self.rank), e.needed.box(self.rank), dout,
                                            blocks.dxs[which])))

        def action() -> None:
            for dout in blocks.clears:
                dout[...] = 0
            op.backward()
            if shrink:  # a turn's mean counts for its part of the mini-batch
                self.backend.scale(blocks.dxs[0], 1.0 / self.plan.turns)
            for dout, pair in adds:
                dout[...] = 0
                if pair is not None:
                    self.backend.copy(pair[1], pair[0])
            self._finish(step.layer)

        return action

    def _common(self, own: Box, need: Box, owner: Array, reader: Array) -> tuple[Array, Array] | None:
        """The views of what an owner's and a reader's block have in common."""
        both = intersect(own, need)
        return None if both is None else (owner[local(both, own)], reader[local(both, need)])

    def _accumulation(self, step: Compute) -> Callable[[], None]:
        consumer, which = step.tensor.rsplit(".", 1)[0], which_input(step.tensor)
        here = self.part(consumer, step.part)
        blocks, e = here.blocks[consumer], here.edges[consumer][which]
        dout = self.part(step.layer, step.part).blocks[step.layer].dout
        if which in blocks.arriving:
            return lambda: self.backend.accumulate(blocks.arriving[which], dout)
        pair = self._common(e.owned.box(self.rank), e.needed.box(self.rank), dout,
                            blocks.dxs[which])
        return _nothing if pair is None else lambda: self.backend.accumulate(pair[1], pair[0])

    def _backward_weight(self, layer: str, here: Pass) -> None:
        self._finish(layer)
        here.ops[layer].backward_weight()
        self._unfinished[layer] = here
        if not self._synchronised(layer):
            self._finish(layer)

    def _synchronised(self, layer: str) -> bool:
        return isinstance(self.network.by_name[layer], BatchNorm) and self.plan.batch_norm == "sync"

    def _finish(self, layer: str) -> None:
        """A micro-batch's gradient of a layer's weights is complete: the first begins the sum, the
        others are added.
        """
        here = self._unfinished.pop(layer, None)
        if here is None:
            return
        if self._synchronised(layer):
            here.ops[layer].finish_weight()
        if self.plan.microbatches > 1:
            total, aside = self.parameters[layer].grad, self._make.aside[layer].grad
            (self.backend.accumulate if here.part else self.backend.copy)(aside, total)

    def _update(self, layer: str, turn: int) -> None:
        self._finish(layer)
        p = self.parameters[layer]
        if p.updates:
            often = len(self.turns) if self.turns and self._place[layer] >= self._switch else 1
            self.rule.update(self.backend, p, self.step * often + turn, self.communicator.progress)

    # -- running -----------------------------------------------------------------------------------
    def iterate(self, images: np.ndarray, labels: np.ndarray, step: int, rate: float,
                momentum: float, decay: float) -> tuple[float, float]:
        """One iteration of SGD on this rank's part of a batch.

        Parameters
        ----------
        images : numpy.ndarray
            [len(image_rows), ...] the box `image_box` of those samples, on the host.
        labels : numpy.ndarray
            [batch] or [batch, outputs] of the whole mini-batch.
        step : int
            The iteration's number (dropout's masks depend on it).

        Returns
        -------
        loss : float
            Mean over the whole batch.
        correct : float
            Samples of the batch classified right.
        """
        assert self.training is not None
        self.rule.set(rate, momentum, decay)
        return self._run(self.training, images, labels, step, True)

    def evaluate(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Loss and correct samples of a batch, without training; labels of -1 do not count."""
        assert self.evaluation is not None
        return self._run(self.evaluation, images, labels, 0, False)

    def _run(self, program: Program, images: np.ndarray, labels: np.ndarray, step: int,
             training: bool) -> tuple[float, float]:
        self._images, self.step, self._train = images, step, training
        self._sums[:] = 0
        if self.turns:
            self._loader(0)()
        for p in self.turns or self.passes:
            rows = labels[p.rows]
            p.sums[:] = 0
            self.backend.to_device(rows if self._targets is None
                                   else np.ascontiguousarray(rows[:, slice(*self._targets)]),
                                   p.labels)
        program.run()
        if self.turns:
            self._sums[:] = [sum(t.sums[0] for t in self.turns) / len(self.turns),
                             sum(t.sums[1] for t in self.turns)]
        return float(self._sums[0]), float(self._sums[1])

    def first_not_finite(self) -> str | None:
        """The first layer whose output on this rank held a NaN or an infinity in the last
        iteration; every rank must ask.
        """
        if self._finite is not None:
            return self._finite.first
        assert self.evaluation is not None
        return first_of_a_pass(self, self.evaluation)


def _nothing(*_: Any) -> None:
    """For steps without local work."""
