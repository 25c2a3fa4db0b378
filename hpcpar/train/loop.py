"""The training loop: batches in, iterations through the executor, checkpoints and the record out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hpcpar.comm import trace
from hpcpar.comm.world import World
from hpcpar.data.prefetch import prefetch
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.train import checkpoint, global_tensors
from hpcpar.train.job import Job, JobMeasurements, JobOptions


@dataclass
class Progress:
    """State of the loop that it tells while it runs (the same on every rank).

    Attributes
    ----------
    train_accuracy, test_accuracy : float or None
        Fractions; None unless the network tells classes apart.
    test_loss : float or None
        Mean over the held-out part, where there is one.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    iteration_s: float
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    epoch_done: bool = False


class Training(Job):
    """One rank of a training, set up: data opened, weights made or resumed, schedules bound.

    Raises
    ------
    InputError
        On every rank alike, before the first message of the training: what is wrong with files,
        sizes or options.
    """

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: JobOptions) -> None:
        super().__init__(world, network, plan, backend, options, training=True)
        self.loader = world.agree(lambda: self.open("train"))
        self.test = world.agree(lambda: self.open("test") if self.has_test else None)
        self.start = world.agree(self.restore) if options.resume else 0
        self.steps = options.steps or options.epochs * self.loader.batches_per_epoch
        self.measured.samples = self.loader.samples
        if self.start >= self.steps:
            raise on_all_ranks(
                InputError(f"{options.resume} is already at step {self.start} of {self.steps}; "
                           "ask for more with --epochs or --steps")
            )

    def run(self, tell: Callable[[Progress], None]) -> JobMeasurements:
        """Train to the end; `tell` hears of every iteration."""
        per_epoch = self.loader.batches_per_epoch
        epochs = math.ceil(self.steps / per_epoch)
        step, sgd, sums = self.start, self.options.sgd, self.sums()
        program = self.executor.training
        assert program is not None
        with closing(prefetch(self.loader, step // per_epoch, step % per_epoch,
                              self.steps - step)) as batches:
            for batch in batches:
                self.communicator.trace.clear()
                begin = time.perf_counter()
                rate = sgd.rate_at(step, self.steps, per_epoch)
                loss, right = self.executor.iterate(batch.images, batch.labels, step, rate,
                                                    sgd.momentum, sgd.decay)
                self.timed(program, begin, loss, step)
                if step == self.start:
                    trace.check(self.communicator.trace, self.schedule, self.world.rank)
                sums.add(loss, right)
                step += 1
                done = step % per_epoch == 0 or step == self.steps
                now = Progress(batch.epoch + 1, epochs, step, self.steps, loss,
                               self.measured.iteration_s[-1], epoch_done=done)
                if done:
                    begun = max(self.start, (step - 1) // per_epoch * per_epoch)
                    self._end_epoch(now, sums.of((step - begun) * int(self.plan.batch))[1])
                    sums = self.sums()
                tell(now)
        self.counted()
        return self.measured

    def _end_epoch(self, now: Progress, train_accuracy: float | None) -> None:
        now.train_accuracy = train_accuracy
        if self.test is not None:
            now.test_loss, now.test_accuracy = self._evaluate()
        for known, value in (
            (self.measured.train_accuracy, now.train_accuracy),
            (self.measured.test_accuracy, now.test_accuracy),
            (self.measured.test_loss, now.test_loss),
        ):
            known.append(math.nan if value is None else value)
        if self.options.checkpoint:
            self._save(now.step)

    def _evaluate(self) -> tuple[float, float | None]:
        """Mean loss and accuracy on the held-out part of the data."""
        assert self.test is not None
        before = {**self.communicator.trace.messages}, {**self.communicator.trace.sent_bytes}
        sums = self.sums()
        for i in range(self.test.batches_per_epoch):
            sums.add(*self.executor.evaluate(*self.test.batch(0, i)))
        self.communicator.trace.messages, self.communicator.trace.sent_bytes = before
        return sums.of(self.test.samples)

    def _save(self, step: int) -> None:
        state: dict[str, Any] = {
            "step": step,
            "epoch": step // self.loader.batches_per_epoch,
            "batch_in_epoch": step % self.loader.batches_per_epoch,
            "seed": self.options.seed,
            "optimizer": self.plan.optimizer,
            "network": self.network.name,
            "shape": list(self.network.image_shape),
            "classes": self.network.classes,
        }
        weights = global_tensors.weights(self.executor, self.world)
        velocities = global_tensors.state(self.executor, self.world)
        if self.world.rank == 0:
            checkpoint.write(self.options.checkpoint, weights, velocities, state)
        else:
            for _ in (*weights, *velocities):
                pass

    def close(self) -> None:
        """Close the data files."""
        self.loader.close()
        if self.test is not None:
            self.test.close()
