"""The training loop: batches, iterations, evaluation, checkpoints and the record."""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from time import perf_counter
from typing import NamedTuple

from hpcpar.comm import trace
from hpcpar.comm.world import World
from hpcpar.data.augment import AugmentOptions
from hpcpar.data.prefetch import Batch, prefetch
from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.process.signals import StopRequest
from hpcpar.runtime.flight import Flight
from hpcpar.runtime.loss_scale import ScaleState
from hpcpar.runtime.optimizer import SGD
from hpcpar.train import checkpoint, global_tensors
from hpcpar.train.checkpoint import CheckpointState
from hpcpar.train.checkpoint_files import CheckpointFiles
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.job import EpochEnd, Job, LossSums
from hpcpar.train.job_options import JobOptions
from hpcpar.train.saving import CollectRecord, Saver


@dataclass
class Progress:
    """State of the loop after an iteration, the same on every rank."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    iteration_s: float
    #: Fractions of correct predictions; None if the network does not classify.
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    #: Mean over the held-out part; None without one.
    test_loss: float | None = None
    #: Counts over the epoch and over the held-out part, if each pixel has a class.
    train_pixels: ClassCounts | None = None
    test_pixels: ClassCounts | None = None
    #: Learning rate, and the loss scale of the next iteration; None without one.
    rate: float = 0.0
    loss_scale: float | None = None
    #: Number of classes if accuracies are fractions of pixels; otherwise 0.
    pixel_classes: int = 0
    epoch_done: bool = False


class _Flying(NamedTuple):
    """An iteration whose result has not been read.

    Attributes
    ----------
    counted : float
        Samples that count in its loss.
    begin_s : float
        When the host began to submit it.
    """

    flight: Flight
    epoch: int
    step: int
    rate: float
    counted: float
    begin_s: float


class Training(Job):
    """One rank of a training run, with open data, bound schedules, and new or restored weights."""

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: JobOptions) -> None:
        super().__init__(world, network, plan, backend, options, training=True)
        self.loader = world.agree(lambda: self.open("train"))
        self.test = world.agree(lambda: self.open("test") if self.has_test else None)
        self.factors = options.factors(plan.batch)
        pass_factors = options.factors(plan.batch / plan.fc_passes)
        self.executor.rule.of_a_pass = (pass_factors[0] / self.factors[0],
                                        pass_factors[1] / self.factors[1])
        self.start = self.restore() if options.resume else 0
        self.scale = self.executor.loss_scale
        if self.scale is not None and self.resumed is not None and self.resumed.loss_scale:
            self.scale.state = ScaleState(self.resumed.loss_scale, self.resumed.good_iterations,
                                          self.resumed.skipped_updates)
        self.steps = options.steps or options.epochs * self.loader.batches_per_epoch
        self.step = self.start
        self.pixel_classes = network.classes * network.labels_pixels
        self.measured.samples = self.loader.samples
        #: Identifies this training, also in runs that resume it.
        self.identity = self.resumed.training if self.resumed else ""
        self.identity = self.identity or self._identity()
        self.files = world.agree(self._files)
        #: Why the evaluation at the end stopped early; empty unless it did.
        self.unevaluated = ""
        #: When the last iteration ended whose result was read.
        self._ended_s = -math.inf

    def run(self, report: Callable[[Progress], None], stop: StopRequest | None = None,
            record: CollectRecord | None = None) -> str:
        """Trains to the end, or until any rank receives a request to `stop`.

        Calls `report` after every iteration. `record` collects the record so far (see `Saver`).

        Returns
        -------
        str
            Why the training stopped early; empty if it is complete.
        """
        save = self._collect if self.options.checkpoint else None
        saver = Saver(self.world, self.options.every, stop or StopRequest(), save, record)
        per_epoch, sums, flying = self.loader.batches_per_epoch, self.sums(), deque[_Flying]()
        with closing(prefetch(self.loader, self.executor.backend.upload,
                              *divmod(self.start, per_epoch), self.steps - self.start)) as batches:
            for batch in batches:
                self.executor.ask = saver.ask()
                flying.append(self._begin(batch))
                self.step += 1
                done = self._ends_epoch(self.step)
                while len(flying) > 1:
                    report(self._end(flying.popleft(), sums, saver))
                first = self.step == self.start + 1
                if not self.communicator.host_runs_ahead or done or first or (
                        saver.needs_results(self.step, done)):
                    now = self._end(flying.popleft(), sums, saver)
                    if done:
                        self._end_epoch(now, sums.means()[1], saver)
                        sums = self.sums()
                    report(now)
                if saver.reason or self.step == self.steps:
                    break
                saver.save_if_due(self.step, done)
                if first:
                    saver.record()  # a run that is killed later leaves at least this one
        saver.finish(self.step)
        self.unevaluated = saver.reason if self.test is not None and self.step == self.steps else ""
        return saver.reason if self.step < self.steps else ""

    def _ends_epoch(self, step: int) -> bool:
        """True where an epoch ends, or the training, when `step` iterations are done."""
        return step % self.loader.batches_per_epoch == 0 or step == self.steps

    def _begin(self, batch: Batch[Array]) -> _Flying:
        """Submits an iteration."""
        sgd = self.options
        self.communicator.trace.clear()
        begin_s = perf_counter()
        rate = self.factors[0] * sgd.rate_at(self.step, self.steps, self.loader.batches_per_epoch)
        flight = self.executor.begin(batch.images, batch.labels, self.step, rate, sgd.momentum,
                                     sgd.decay * self.factors[1], batch.counted,
                                     self.stamps.kept.takes(self.step))
        return _Flying(flight, batch.epoch, self.step, rate, batch.counted[1], begin_s)

    def _end(self, it: _Flying, sums: LossSums, saver: Saver) -> Progress:
        """Reads the result of an iteration, and adds it to the sums and the measurements."""
        result = it.flight.result()
        begin_s = max(it.begin_s, self._ended_s)  # a GPU first ends the iteration before
        self._ended_s = result.ended_s
        self.time(it.flight.times, begin_s, result.ended_s, result.loss, it.step)
        if it.step == self.start:
            trace.check(self.communicator.trace, self.schedule, self.world.rank)
        sums.add(result.loss, result.correct, it.counted)
        saver.receive(result.asked)
        epochs = math.ceil(self.steps / self.loader.batches_per_epoch)
        return Progress(it.epoch + 1, epochs, it.step + 1, self.steps, result.loss, self.last_s,
                        rate=it.rate, pixel_classes=self.pixel_classes,
                        loss_scale=None if self.scale is None else self.scale.state.scale,
                        epoch_done=self._ends_epoch(it.step + 1))

    def _end_epoch(self, now: Progress, train_accuracy: float | None, saver: Saver) -> None:
        """Evaluates the held-out part; adds the epoch's results to `now` and the measurements."""
        now.train_accuracy, test_counts = train_accuracy, None
        train_counts = self.executor.class_counts()
        if self.test is not None:
            now.test_loss, now.test_accuracy = self._evaluate(saver)
            test_counts = self.executor.class_counts()
            if test_counts is not None and saver.reason:
                test_counts[...] = 0  # the evaluation stopped before the last sample
        now.train_pixels, now.test_pixels = map(ClassCounts.of, (train_counts, test_counts))
        train, test, loss = (math.nan if value is None else value for value in (
            now.train_accuracy, now.test_accuracy, now.test_loss))
        self.measured.epochs.add(now.epoch - 1,
                                 EpochEnd(train, test, loss, test_counts, train_counts))

    def _evaluate(self, saver: Saver) -> tuple[float | None, float | None]:
        """Mean loss and accuracy on the held-out part; None if a request to stop ends it early."""
        assert self.test is not None
        before = {**self.communicator.trace.messages}, {**self.communicator.trace.sent_bytes}
        sums = self.sums()
        for i in range(self.test.batches_per_epoch):
            self.executor.ask = saver.ask()
            counted = self.test.counted(0, i)
            sums.add(*self.executor.evaluate(*self.test.batch(0, i), counted), counted[1])
            if saver.receive(self.executor.asked):
                break
        self.communicator.trace.messages, self.communicator.trace.sent_bytes = before
        return (None, None) if saver.reason else sums.means()

    def _collect(self) -> Callable[[], None] | None:
        """Collects a checkpoint on rank 0; returns the function that writes it there."""
        state = self._state()
        weights = global_tensors.weights(self.executor, self.world)
        velocities = global_tensors.state(self.executor, self.world)
        if self.world.rank:
            for _ in (*weights, *velocities):
                pass
            return None
        content, files = checkpoint.image(weights, velocities, state), self.files
        assert files is not None
        return lambda: files.write(content, state.step)

    def _state(self) -> CheckpointState:
        """Progress and setup, for a checkpoint."""
        epoch, batch = divmod(self.step, self.loader.batches_per_epoch)
        return CheckpointState(self.step, epoch, batch, self.options.seed, self.network.name,
                               tuple(self.network.image_shape), self.network.classes,
                               self.plan.optimizer, self.identity,
                               *(() if self.scale is None else self.scale.state))

    def _identity(self) -> str:
        """A digest of everything that decides what a new training computes, except its length and
        how it is split.
        """
        plan, data = self.plan, self.options.data
        facts = [plan.network.title, plan.network.shape, plan.network.classes, plan.batch,
                 plan.precision, plan.optimizer, plan.batch_norm, self.options.seed,
                 os.path.basename(data), os.path.getsize(data),
                 *(getattr(self.options, f.name) for kind in (SGD, AugmentOptions)
                   for f in fields(kind))]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _files(self) -> CheckpointFiles | None:
        """The files of checkpoints, which rank 0 writes."""
        options, per_epoch = self.options, self.loader.batches_per_epoch
        if self.world.rank or not options.checkpoint:
            return None
        files = CheckpointFiles(options.checkpoint, options.keep, options.resume, self._state(),
                                options.overwrite)
        files.require_free(lambda n: options.every.may_end(n, n % per_epoch == 0), self.steps)
        return files

    def close(self) -> None:
        """Close the data files."""
        self.loader.close()
        if self.test is not None:
            self.test.close()
