"""The executor: one rank's program in three acts, `plan_memory`, `bind` and `run`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm import message_buffers
from hpcpar.comm.buffers import Buffers
from hpcpar.comm.communicator import Communicator
from hpcpar.errors import RunError
from hpcpar.kernels.bfloat16 import widening
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import Box
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.runtime.actions import Actions
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.flight import Berth, Flight, Receiver
from hpcpar.runtime.fusion import Fusion
from hpcpar.runtime.ops.base import Caller
from hpcpar.runtime.optimizer import Rule
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Pass, Passes
from hpcpar.runtime.program import Program
from hpcpar.runtime.replay import Replays
from hpcpar.schedule.loss_sums import LOSS_SUMS
from hpcpar.schedule.memory_plan.allocation import plan_memory
from hpcpar.schedule.memory_plan.packing import moments
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.memory_plan.weights import weight_roles
from hpcpar.schedule.steps import Comm, Phase, Role, Schedule

#: Offset of the forward-only schedule's message tags; the training schedule uses the tags below.
_TAGS = 1 << 14


@dataclass(frozen=True)
class MemoryUse:
    """Memory of this rank: the most bytes of blocks alive and of messages in flight at once, and
    the bytes allocated for blocks and messages.
    """

    alive_bytes: int
    blocks_bytes: int
    flying_bytes: int
    messages_bytes: int


class Executor:
    """One rank of a run, in three acts: `plan_memory` lays out its memory, `bind` creates the
    arrays and binds the steps to them, and `iterate` and `evaluate` run the steps.

    All ranks must create it at the same time, because they compare their schedules.

    Parameters
    ----------
    schedule : Schedule, optional
        The training iteration; without it there are no gradients.
    evaluation : Schedule, optional
        The forward pass alone, for `evaluate`.
    seed : int
        Determines initial weights and dropout.
    graphs : bool
        On a GPU, repeat training iterations by graphs.

    Attributes
    ----------
    planned : MemoryPlan
        Buffers, views and lifetimes.
    passes : list of Pass
        The micro-batches; or the mini-batch's pass before the switch.
    fc_passes : list of Pass
        The passes after the switch (OWT); empty without a switch.
    training, evaluation : Program or None
        The bound schedules.
    replays : Replays or None
        Runs training iterations by graphs.
    image_box : Box
        The part of a sample that this rank reads.
    image_rows : numpy.ndarray
        Positions in the mini-batch of the samples that this rank reads.

    Raises
    ------
    RunError
        There is not enough memory for this rank.
    """

    def __init__(self, network: Network, plan: Plan, schedule: Schedule | None,
                 communicator: Communicator, backend: Backend, seed: int,
                 evaluation: Schedule | None = None, graphs: bool = False) -> None:
        self.network, self.plan, self.rank = network, plan, communicator.world.rank
        self.communicator, self.backend = communicator, widening(backend, plan.formats.item_dtype)
        schedules = [s for s in (schedule, evaluation) if s is not None]
        for checked in schedules:
            communicator.agree(checked)
        self.planned = plan_memory(network, plan, self.rank, schedules,
                                   training=schedule is not None)
        try:
            programs = self.bind(schedule, seed)
        except MemoryError as err:
            raise RunError(f"not enough memory for rank {self.rank}'s part of the plan ({err}); "
                           "plan for more ranks or a smaller batch") from err
        self.training = programs[0] if schedule is not None else None
        self.evaluation = programs[-1] if evaluation is not None else None
        captures = graphs and backend.works_later and self.training is not None
        self.replays = Replays(programs[0], self._actions) if captures else None

    # -- binding -----------------------------------------------------------------------------------
    def bind(self, schedule: Schedule | None, seed: int) -> list[Program]:
        """Create the arrays of the planned memory, and bind every program's steps to them."""
        network, plan, backend = self.network, self.plan, self.backend
        self.rule = Rule(plan.optimizer)
        #: This rank's requests (`Ask`), and the sum of all ranks' requests in the last program.
        self.ask, self.asked = 0, 0
        self._sums = backend.zeros((plan.fc_passes, LOSS_SUMS), np.float64)
        self._images: Array = np.zeros(0)
        self._mean: Array | float = 0.0
        self._scale: Array | float = 1.0
        self._buckets: dict[int, Array] = {}
        self.parameters = self._make_parameters(schedule, seed)
        self._arena = Arena(backend, self.planned)
        self._passes = Passes(network, plan, backend, self.communicator, self.planned, self._arena,
                              self.parameters, seed, schedule is not None)
        several = plan.fc_passes > 1
        self.passes = self._passes.all[:1] if several else self._passes.all
        self.fc_passes = self._passes.all[1:] if several else []
        self._set_images()
        self._actions = Actions(network, plan, backend, self.rank, self._passes, self.parameters,
                                self.rule, self._sums, self.communicator.progress)
        self.loss_scale = self._actions.loss_scale
        learning = [] if network.loss.outside else self.fc_passes or self.passes
        self._berths = [Berth(self.communicator, self._sums, [p.labels for p in learning],
                              self._actions.numbers)
                        for _ in range(2)]
        programs = [self._bind_compute(steps) for steps in self.planned.programs]
        if schedule is not None and backend.works_later:
            Fusion(self._actions, programs[0]).join()
        messages_bytes, flying_bytes = self._bind_messages(programs)
        alive_bytes = sum(b.items for b in self.planned.peak()) * plan.item_bytes
        self.memory = MemoryUse(alive_bytes, self._arena.laid_bytes, flying_bytes, messages_bytes)
        return programs

    def _make_parameters(self, schedule: Schedule | None, seed: int) -> dict[str, Parameters]:
        places = self._place_gradients(schedule)
        summed, updated = weight_roles(self.network, self.plan, schedule, self.rank)
        return {
            layer.name: Parameters(self.network, layer, self.plan, self.backend, self.rank, seed,
                                   layer.name in summed, layer.name in updated,
                                   places.get(layer.name), training=schedule is not None)
            for layer in self.network.stateful
        }

    def _place_gradients(self, schedule: Schedule | None) -> dict[str, Array]:
        """Place the gradients of a bucket side by side, by layer."""
        out: dict[str, Array] = {}
        for step in schedule.comms if schedule is not None else ():
            if len(step.covers) < 2 or not step.source.holds(self.rank):
                continue
            whole = self.backend.zeros((step.source.items(self.rank),), self.plan.dtype)
            self._buckets[step.index], at = whole, 0
            for name in step.covers:
                layer = self.network.by_name[name]
                size = layer.parameters(self.network.input_shape(layer))
                out[name], at = whole[at:at + size], at + size
        return out

    def _set_images(self) -> None:
        """Set the samples that this rank reads, and each micro-batch's rows among them."""
        first = self.network.layers[0]
        config = self.plan.configs[first.name]
        boxes = [owned(self.network, first, config, p.samples).box(self.rank) for p in self.passes]
        self.image_box: Box = boxes[0][1:]
        rows = [p.place(np.arange(*box[0])) for p, box in zip(self.passes, boxes, strict=True)]
        ends = np.cumsum([len(r) for r in rows]).tolist()
        self._image_rows_of = [slice(end - len(r), end)
                               for r, end in zip(rows, ends, strict=True)]
        self.image_rows = np.concatenate(rows)

    def _bind_compute(self, steps: RankSteps) -> Program:
        """A program with its compute steps and image loads bound."""
        program = Program(steps, self.communicator, self._arena.clears(steps))
        for i in steps.mine:
            step = program.schedule.steps[i]
            if not isinstance(step, Comm):
                program.actions[i] = self._actions.action(step)
        if self.backend.works_later:
            self._actions.join_updates(program)
        if not self.fc_passes:
            program.loads = {i: partial(self._load, part) for i, part in steps.loads.items()}
        return program

    def _bind_messages(self, programs: Sequence[Program]) -> tuple[int, int]:
        """Bind the communication steps; return the bytes that `message_buffers.place` returns."""
        prepared: list[tuple[Program, Buffers]] = []
        for program in programs:
            for i in program.steps.until:
                step = program.schedule.steps[i]
                assert isinstance(step, Comm)
                prepared.append((program, self.communicator.prepare(step, *self._moved(step))))
        flights = [moments([program.steps.in_flight(b.step.index)]) for program, b in prepared]
        sizes = message_buffers.place(self.backend, [b for _, b in prepared], flights)
        for program, buffers in prepared:
            tags = 0 if self.planned.passes.training and program is programs[0] else _TAGS
            program.transfers[buffers.step.index] = self.communicator.connect(buffers, tags)
        return sizes

    def _moved(self, step: Comm) -> tuple[Array, Array]:
        """The arrays before and after a communication step."""
        if step.phase is Phase.LOSS:
            return (self._actions.summed(step),) * 2
        if step.phase is Phase.GRADIENT and step.index in self._buckets:
            return self._buckets[step.index], self._buckets[step.index]
        if step.phase in (Phase.GRADIENT, Phase.UPDATE):
            return self._moved_weights(step)
        ref = step.tensor
        if ref.role is Role.MOMENTS:
            op = self.part(ref.layer, step.part).ops[ref.layer]
            return (op.moments_gradient if ref.gradient else op.moments,) * 2
        before, after = self.planned.passes.moved(step)
        return self._arena.array(before), self._arena.array(after)

    def _moved_weights(self, step: Comm) -> tuple[Array, Array]:
        """A layer's gradient before and after its sum, or its weights before and after a gather."""
        p, is_gradient = self.parameters[step.layer], step.phase is Phase.GRADIENT
        flat = p.grad if is_gradient else p.flat
        if is_gradient and self.plan.synchronization is Synchronization.ALLREDUCE:
            return flat, flat
        whole = p.matrix(flat)
        shard = p.updated(flat) if self.plan.synchronization is Synchronization.SHARDED else whole
        return (whole, shard) if is_gradient else (shard, whole)

    def _load(self, part: int) -> None:
        """Normalize a micro-batch's images into the network's input."""
        target = self.passes[part].blocks[self.network.layers[0].name].out
        images = self._images[self._image_rows_of[part]]
        self.backend.normalize(images, self._mean, self._scale, target)

    # -- inspection --------------------------------------------------------------------------------
    @property
    def truth_box(self) -> Box:
        """The part of a sample's ground truth that this rank reads."""
        return self._passes.truth_box

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays: weights and their state, blocks, kept arrays, messages."""
        parameters = self.parameters.values()
        arrays = [a for p in parameters for a in (p.flat, p.copy, p.grad, *p.state, p.buffers)]
        arrays += [p.grad for p in self._passes.op_parameters.values() if p not in parameters]
        total = sum(int(a.nbytes) for a in arrays if a is not None)
        total += sum(op.kept_bytes for op in self._passes.ops)
        return total + self.memory.blocks_bytes + self.memory.messages_bytes

    def part(self, layer: str, number: int) -> Pass:
        """A layer's pass, for a micro-batch or FC pass."""
        return self._passes.find(layer, number)

    def last_part(self, layer: str) -> Pass:
        """A layer's last pass in an iteration."""
        return self.part(layer, max(self.plan.microbatches, self.plan.fc_passes) - 1)

    def lives(self, layer: str) -> bool:
        """True where this rank has a part of the layer."""
        return self.plan.configs[layer].holds(self.rank)

    # -- running -----------------------------------------------------------------------------------
    def normalize_by(self, mean: NDArray[np.generic], scale: NDArray[np.generic]) -> None:
        """From now on, feed the network (images - mean) * scale; both are [c, 1, ...]."""
        self._mean, self._scale = self.backend.upload(mean), self.backend.upload(scale)

    def iterate(self, images: Array, labels: NDArray[np.generic], step: int,
                rate: float, momentum: float, decay: float,
                counted: tuple[int, float] | None = None) -> tuple[float, float]:
        """One training iteration on this rank's part of a batch.

        Parameters
        ----------
        images : array
            [len(image_rows), ...] the box `image_box` of the samples `image_rows`, of any type, on
            the host or on the device.
        labels : numpy.ndarray
            [batch, ...] the part `truth_box` of the ground truth of every sample in the mini-batch.
        step : int
            The iteration; dropout masks depend on it.
        counted : (int, float), optional
            Samples of the batch, and how many of them count in its loss, where some labels do not
            count (`Loader.counted`).

        Returns
        -------
        loss : float
            Mean over everything that counts in the whole batch.
        correct : float
            Correctly classified samples of the batch; a pixel counts as a fraction of its sample.
        """
        return self._read(self.begin(images, labels, step, rate, momentum, decay, counted))

    def begin(self, images: Array, labels: NDArray[np.generic], step: int, rate: float,
              momentum: float, decay: float, counted: tuple[int, float] | None = None,
              noted: bool = True) -> Flight:
        """Submit an iteration, as in `iterate`, and return before a GPU has finished it. The next
        iteration may begin before its result is read; read the last one before you drop the
        executor. Only a `noted` one has step times.
        """
        assert self.training is not None
        self.rule.set(rate, momentum, decay)
        self._actions.begin(step, training=True)
        now = self._submit(self.training, images, labels, counted, f"iteration {step + 1}", noted)
        self._actions.end()
        return now

    def evaluate(self, images: Array, labels: NDArray[np.generic],
                 counted: tuple[int, float] | None = None) -> tuple[float, float]:
        """Loss and correct samples of a batch, without training; labels -1 do not count."""
        assert self.evaluation is not None
        self._actions.begin(0, training=False)
        return self._read(self._submit(self.evaluation, images, labels, counted, "an evaluation"))

    def class_counts(self) -> NDArray[np.int64] | None:
        """`Actions.counts` since the last call, over all ranks. Every rank must call this."""
        counts = self._actions.counts
        if counts is None:
            return None
        of_rank = np.empty(counts.shape, np.int64)
        self.backend.to_host(counts, of_rank)
        counts[...] = 0
        return self.communicator.world.sum_of_each(of_rank)

    def give_outputs_to(self, caller: Caller) -> None:
        """From now on, `caller` computes the loss (`Outputs`)."""
        for each_pass in self._passes.all:
            each_pass.ops[self.network.loss.name].ctx.caller = caller

    def set_modes(self, resting: frozenset[str], momenta: Mapping[str, float]) -> None:
        """From now on, these layers train so; see `Actions.resting` and `Actions.momenta`."""
        self._actions.resting, self._actions.momenta = resting, momenta

    def run_outside(self, program: Program, images: Array, step: int, training: bool,
                    first: int = 0, end: int = sys.maxsize) -> None:
        """Run steps `first` to `end` (exclusive) of a program whose loss the caller computes.

        Images are as in `iterate`; None if `first` is not 0.
        """
        if images is not None:
            self._images = images
        self._actions.begin(step, training)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            program.run(first, end)
        self._actions.finish()

    def give_back(self, array: Array, receive: Receiver) -> None:
        """From now on, pass the host's copy of a device array to `receive` with every result."""
        for berth in self._berths:
            berth.give_back(array, receive)

    def _read(self, flight: Flight) -> tuple[float, float]:
        """Loss (0 if no sample counts) and correct samples."""
        result = flight.result()
        self.asked = result.asked
        return result.loss, result.correct

    def _submit(self, program: Program, images: Array, labels: NDArray[np.generic],
                counted: tuple[int, float] | None, place: str, noted: bool = True) -> Flight:
        """Submit a program on a batch."""
        samples, counting = counted or (self.plan.batch, self.plan.batch)
        self._actions.weight = self.plan.batch / counting if counting else 0.0
        self._actions.share = counting / samples
        berth = self._berths[0]
        self._berths.reverse()
        parts = [(p.rows, (slice(None), *p.truth)) for p in self.fc_passes or self.passes]
        berth.board(self.ask, [labels[rows][part] for rows, part in parts])
        self.communicator.world.lookout.place = place
        self._images = self.backend.upload(images)
        if self.fc_passes:
            self._load(0)
        # a non-finite value shows in the loss, and the training loop finds the layer it came from
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.replays is None or program is not self.training:
                program.run(noted=noted)
            else:
                self.replays.run((counted, self.rule.momentum, self.rule.decay), noted)
        return berth.depart(program, self._images, place)
