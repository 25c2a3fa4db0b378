"""Inference: one pass over the samples of a data file under a plan, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

from hpcpar.comm import trace
from hpcpar.comm.world import World
from hpcpar.data.prefetch import prefetch
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.process.signals import StopRequest
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.job import EpochEnd, Job
from hpcpar.train.job_options import JobOptions
from hpcpar.train.saving import Saver


@dataclass(frozen=True)
class InferenceProgress:
    """State of an inference after a batch, with the means over all batches so far."""

    #: Batches done, and all batches.
    done: int
    passes: int
    loss: float
    #: None if the network does not classify.
    accuracy: float | None
    pass_s: float
    #: Counts after the last batch, if each pixel has a class.
    pixels: ClassCounts | None = None


class Inference(Job):
    """One rank of an inference over a data file's held-out part; without one, over all samples."""

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: JobOptions) -> None:
        super().__init__(world, network, plan, backend, options, training=False)
        self.loader = world.agree(lambda: self.open("test" if self.has_test else "all"))
        self.measured.samples = self.loader.samples
        if options.resume:
            self.restore()

    def run(self, report: Callable[[InferenceProgress], None],
            stop: StopRequest | None = None) -> str:
        """Runs all batches; calls `report` after each.

        Returns
        -------
        str
            Why the inference stopped early; empty if it is complete.
        """
        saver = Saver(self.world, self.options.every, stop or StopRequest(), None, None)
        sums, passes = self.sums(), self.loader.batches_per_epoch
        program = self.executor.evaluation
        assert program is not None
        with closing(prefetch(self.loader, self.executor.backend.upload)) as batches:
            for i, batch in enumerate(batches):
                self.communicator.trace.clear()
                begin = perf_counter()
                self.executor.ask = saver.ask()
                loss, correct = self.executor.evaluate(batch.images, batch.labels, batch.counted)
                self.time(program.times, begin, perf_counter(), loss, i)
                if i == 0:
                    trace.check(self.communicator.trace, self.schedule, self.world.rank)
                sums.add(loss, correct, batch.counted[1])
                mean, accuracy = sums.means()
                counts = self.executor.class_counts() if i + 1 == passes else None
                report(InferenceProgress(i + 1, passes, mean, accuracy, self.last_s,
                                         ClassCounts.of(counts)))
                if saver.receive(self.executor.asked) and i + 1 < passes:
                    break
        saver.finish(0)
        self.measured.epochs.add(0, EpochEnd(
            test_loss=mean, test_accuracy=math.nan if accuracy is None else accuracy,
            test_counts=counts))
        return saver.reason if i + 1 < passes else ""

    def close(self) -> None:
        """Close the data file."""
        self.loader.close()
