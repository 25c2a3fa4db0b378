"""The executor: runs a schedule, step by step, on this rank's blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import LibraryTransfer, Transfer
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Loss
from hpcpar.plan.boxes import Box, Interval
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import edges
from hpcpar.schedule.interior import interior, strips
from hpcpar.schedule.steps import Comm, Compute, Op, Phase, Schedule
from hpcpar.train.ops.base import Context
from hpcpar.train.ops.base import Op as LayerOp
from hpcpar.train.ops.build import build
from hpcpar.train.parameters import Parameters
from hpcpar.train.storage import allocate

#: Steps of the forward-only schedule use tags beyond those of the training schedule.
_TAGS = 1 << 14


class Program:
    """A schedule bound to this rank: what to do at each step, and what to wait for before it.

    Attributes
    ----------
    seconds : numpy.ndarray
        [steps] of the last run: a compute step's duration, a communication step's exposed time (pack, post, wait, unpack).
    started_s : numpy.ndarray
        [steps] when each began, on this process's clock.
    """

    def __init__(self, schedule: Schedule, communicator: Communicator) -> None:
        self.schedule, self.communicator = schedule, communicator
        n = len(schedule.steps)
        self.seconds = np.zeros(n)
        self.started_s = np.zeros(n)
        self.actions: list[Callable[[], None]] = []
        self.transfers: dict[int, Transfer | LibraryTransfer] = {}
        self.waits: list[list[int]] = [[] for _ in range(n + 1)]
        for step in schedule.comms:
            self.waits[step.needed_by].append(step.index)

    def run(self) -> None:
        """Do every step of the list once, in order."""
        clock = time.perf_counter
        synchronize = self.communicator.backend.synchronize
        self.seconds[:] = 0
        for i, step in enumerate(self.schedule.steps):
            self._wait(i)
            t = clock()
            self.started_s[i] = t
            if isinstance(step, Comm):
                self.communicator.start(self.transfers[i])
            else:
                self.communicator.progress()
                self.actions[i]()
                synchronize()
            self.seconds[i] += clock() - t
        self._wait(len(self.schedule.steps))

    def _wait(self, step: int) -> None:
        for i in self.waits[step]:
            t = time.perf_counter()
            self.communicator.wait(self.transfers[i])
            self.seconds[i] += time.perf_counter() - t


class Executor:
    """One rank of a training run: blocks, weights, ops and the bound schedules.

    Parameters
    ----------
    schedule : Schedule
        The training iteration.
    evaluation : Schedule, optional
        The forward pass alone, for `evaluate`.
    seed : int
        Fixes initial weights and dropout.

    Attributes
    ----------
    images : array
        The input layer's block, to be filled before each iteration.
    sums : numpy.ndarray
        (loss, correct samples) of the whole batch after an iteration; correct counts only where a rank sees all classes.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        schedule: Schedule,
        communicator: Communicator,
        backend: Backend,
        seed: int,
        evaluation: Schedule | None = None,
    ) -> None:
        self.network, self.plan, self.backend, self.communicator = network, plan, backend, communicator
        rank = communicator.world.rank
        self.rank = rank
        self.edges = {name: found[0] for name, found in edges(network, plan).items()}
        self.blocks = allocate(network, plan, self.edges, backend, rank)
        self.parameters: dict[str, Parameters] = {}
        self.ops: dict[str, LayerOp] = {}
        self.sums = np.zeros(2)
        for position, layer in enumerate(network.layers[1:], 1):
            if layer.has_weights:
                self.parameters[layer.name] = Parameters(network, layer, plan, backend, rank, seed)
            own = owned(network, layer, plan.configs[layer.name], plan.batch).box(rank)
            blocks = self.blocks[layer.name]
            if isinstance(layer, Loss) and blocks.dx is None:
                blocks.dx = backend.zeros(blocks.x.shape, plan.dtype)  # type: ignore[union-attr]
            ctx = Context(
                backend, layer, network.input_shape(layer), plan.batch, self.edges[layer.name].needed.box(rank), own, blocks,
                self.parameters.get(layer.name), communicator.progress, seed, position, sums=self.sums,
            )
            self.ops[layer.name] = build(ctx)
        self.images: Array = self.blocks[network.layers[0].name].y
        first, last = self.label_interval
        self.labels: Array = backend.zeros((last - first,), np.int64)
        self.rate, self.momentum, self.decay = 0.0, 0.0, 0.0
        self.training = self._program(schedule, 0)
        self.evaluation = self._program(evaluation, _TAGS) if evaluation is not None else None

    @property
    def image_box(self) -> Box:
        """The box of the batch's images that this rank reads."""
        return owned(self.network, self.network.layers[0], self.plan.configs[self.network.layers[0].name], self.plan.batch).box(self.rank)

    @property
    def label_interval(self) -> Interval:
        """The samples of the batch whose labels this rank reads."""
        return self.ops[self.network.layers[-1].name].ctx.own[0]

    # -- binding --------------------------------------------------------------------------------------------
    def _program(self, schedule: Schedule, tags: int) -> Program:
        program = Program(schedule, self.communicator)
        for step in schedule.steps:
            if isinstance(step, Comm):
                held, wanted = self._arrays(step)
                program.transfers[step.index] = self.communicator.bind(step, held, wanted, tags)
                program.actions.append(_nothing)
            else:
                program.actions.append(self._action(step))
        return program

    def _arrays(self, step: Comm) -> tuple[Array, Array]:
        """The arrays before and after a communication step."""
        if step.phase is Phase.LOSS:
            return self.sums, self.sums
        if step.phase is Phase.GRADIENT:
            grad = self.parameters[step.layer].grad
            return grad, grad
        consumer, producer = self.blocks[step.layer], self.blocks[self.edges[step.layer].producer.name]
        if step.phase is Phase.FORWARD:
            return producer.y, consumer.x
        return consumer.dx, producer.dy

    def _action(self, step: Compute) -> Callable[[], None]:
        """What a compute step calls."""
        op = self.ops[step.layer]
        if step.op is Op.UPDATE:
            p = self.parameters[step.layer]
            return lambda: self.backend.sgd_update(p.flat, p.grad, p.velocity, self.rate, self.momentum, self.decay)
        if step.op in (Op.INTERIOR, Op.BOUNDARY):
            e = self.edges[step.layer]
            inside = interior(e.owned, e.needed, op.ctx.own, self.rank)
            boxes = [inside] if step.op is Op.INTERIOR else strips(op.ctx.own, inside)
            return lambda: _each(op.interior, boxes)
        if isinstance(op.ctx.layer, Loss) and step.op is Op.BACKWARD:
            return _nothing  # done with the loss itself
        return {Op.FORWARD: op.forward, Op.BACKWARD: op.backward, Op.BACKWARD_WEIGHT: op.backward_weight}[step.op]

    # -- running --------------------------------------------------------------------------------------------
    def iterate(self, images: np.ndarray, labels: np.ndarray, step: int, rate: float, momentum: float, decay: float) -> tuple[float, float]:
        """One iteration of SGD on this rank's part of a batch.

        Parameters
        ----------
        images : numpy.ndarray
            The input layer's box [n, c, h, w], on the host.
        labels : numpy.ndarray
            [n] of the loss layer's samples.
        step : int
            The iteration's number (dropout's masks depend on it).

        Returns
        -------
        loss : float
            Mean over the whole batch.
        correct : float
            Samples of the batch classified right.
        """
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self._begin(images, labels, step, True)
        self.training.run()
        return float(self.sums[0]), float(self.sums[1])

    def evaluate(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Loss and correct samples of a batch, without training; labels of -1 do not count."""
        assert self.evaluation is not None
        self._begin(images, labels, 0, False)
        self.evaluation.run()
        return float(self.sums[0]), float(self.sums[1])

    def _begin(self, images: np.ndarray, labels: np.ndarray, step: int, training: bool) -> None:
        self.backend.to_device(images, self.images)
        self.backend.to_device(labels, self.labels)
        for op in self.ops.values():
            op.ctx.step, op.ctx.training, op.ctx.labels = step, training, self.labels

    def first_not_finite(self) -> str | None:
        """The first layer whose output block on this rank holds a NaN or an infinity."""
        for layer in self.network.layers[:-1]:
            y = self.blocks[layer.name].y
            if y is not None and not self.backend.all_finite(y):
                return layer.name
        return None


def _each(action: Callable[[Box], None], boxes: list[Box]) -> None:
    for box in boxes:
        action(box)


def _nothing(*_: Any) -> None:
    """For steps without local work."""
