"""The common part of all runs on the ranks: schedules bound, weights made or read, data opened, and
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data import dataset
from hpcpar.data.augment import Augmentation
from hpcpar.data.loader import Loader
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.nonfinite import NonfiniteDetector
from hpcpar.runtime.program import Program
from hpcpar.runtime.reservoir import MAX_ITERATIONS, Reservoir
from hpcpar.runtime.stamps import Stamps
from hpcpar.schedule.steps import Schedule
from hpcpar.train import checkpoint, global_tensors
from hpcpar.train.checkpoint import Checked
from hpcpar.train.job_options import JobOptions


class EpochEnd(NamedTuple):
    """The result of an epoch; NaN where it was not measured. The counts are those of
    `ClassCounts` on the held-out part, and in training.
    """

    train_accuracy: float = math.nan
    test_accuracy: float = math.nan
    test_loss: float = math.nan
    test_counts: NDArray[np.int64] | None = None
    train_counts: NDArray[np.int64] | None = None


class JobMeasurements:
    """This rank's measurements, in bounded memory.

    Attributes
    ----------
    iterations : Reservoir
        Seconds and loss of iterations.
    epochs : Reservoir of EpochEnd
    messages, sent_bytes : numpy.ndarray
        [steps] sent in one iteration.
    samples : int
        Training samples of the data file.
    """

    def __init__(self, steps: int) -> None:
        self.iterations: Reservoir[tuple[float, float]] = Reservoir(MAX_ITERATIONS)
        self.epochs: Reservoir[EpochEnd] = Reservoir(MAX_ITERATIONS)
        self.messages, self.sent_bytes = np.zeros((2, steps), np.int64)
        self.samples = 0
        #: Seconds outside of the schedule, until the next iteration.
        self.outside: Reservoir[float] = Reservoir(MAX_ITERATIONS)

    @property
    def losses(self) -> list[float]:
        """Of the iterations that are kept."""
        return [loss for _, loss in self.iterations.values]


@dataclass
class LossSums:
    """Mean loss and accuracy of samples that came in batches, over those that count (None where no
    sample can be right).
    """

    counts: bool
    loss: float = 0.0
    correct: float = 0.0
    counted: float = 0.0

    def add(self, loss: float, correct: float, counted: float) -> None:
        """A batch's mean loss and its correct samples, of `counted` samples."""
        self.loss += loss * counted
        self.correct += correct
        self.counted += counted

    def means(self) -> tuple[float, float | None]:
        """Loss and accuracy; NaN where nothing counts."""
        of = self.counted or math.nan
        return self.loss / of, self.correct / of if self.counts else None


class MeasuredRun:
    """The measurements of one rank for the record of a run. All ranks make it at the same time.

    Attributes
    ----------
    schedule : Schedule
        The schedule that is measured: the training iteration, or the forward pass.
    start, step : int
        The first iteration of a training, and iterations done.
    """

    def __init__(self, world: World, executor: Executor, schedule: Schedule) -> None:
        self.world, self.executor, self.schedule = world, executor, schedule
        self.network, self.plan = executor.network, executor.plan
        self.communicator = executor.communicator
        self.measured = JobMeasurements(len(schedule.steps))
        self.stamps = Stamps(world, len(schedule.steps))
        self.start, self.step = 0, 0

    def count(self) -> None:
        """Notes what the iteration before this call has sent."""
        t, steps = self.communicator.trace, self.schedule.steps
        self.measured.messages = np.array([t.messages.get(s.index, 0) for s in steps], np.int64)
        self.measured.sent_bytes = np.array([t.sent_bytes.get(s.index, 0) for s in steps], np.int64)


class Job(MeasuredRun):
    """One rank of a run, set up.

    Parameters
    ----------
    training : bool
        False for the forward pass alone: no gradients are allocated.

    Attributes
    ----------
    loader : Loader
        Of the samples that are trained or inferred with.
    last_s, last_loss : float
        Time (s) and loss of the last iteration.

    Raises
    ------
    InputError
        On every rank alike, before the first message: what is wrong with files, sizes or options.
    """

    loader: Loader

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: JobOptions, training: bool) -> None:
        require_ranks(world, plan)
        self.options = options
        forward: Schedule = world.agree(lambda: schedule_for(network, plan, training=False))
        schedule = world.agree(lambda: schedule_for(network, plan)) if training else forward
        communicator = Communicator(world, backend, Transport(options.transport))
        super().__init__(world, Executor(network, plan, schedule if training else None,
                                         communicator, backend, options.seed, forward), schedule)
        self.detector = NonfiniteDetector(self.executor)
        #: What a partial checkpoint did not give, a line each.
        self.not_restored: list[str] = []
        self.last_s, self.last_loss = 0.0, math.nan

    @property
    def has_test(self) -> bool:
        """True where the data file has a held-out part."""
        return "test_images" in dataset.info(self.options.data)

    def open(self, split: str) -> Loader:
        """This rank's view of a part of the data file, whose images the executor normalises."""
        loader = open_data(self.executor, self.options.data, self.options.seed, split,
                           self.options.augment)
        self.executor.normalise_by(loader.mean, loader.scale)
        return loader

    def restore(self) -> int:
        """Loads this rank's rows from a checkpoint of any plan; returns the iterations already
        done. Every rank must call it.

        Raises
        ------
        InputError
            On every rank alike: the checkpoint does not fit, or is damaged and may not be partial.
        """
        path, partial = self.options.resume, self.options.partial
        found = self.world.agree(lambda: checkpoint.check(path, self.network, self._states))
        self.world.agree(lambda: self._require(found))
        missing = dict(found.faults)
        if partial:
            for each in self.world.comm.allgather(self._damaged(found.faults)):
                missing |= each
        self.not_restored = list(missing.values())
        self.world.agree(lambda: self._load(missing))
        return found.state.step if found.state is not None else 0

    def _require(self, found: Checked) -> None:
        """Checks that a checkpoint has the same kind of training, and is whole if it has to be."""
        path, state = self.options.resume, found.state
        if state is not None and self.executor.training is not None:
            if state.seed != self.options.seed:
                raise InputError(f"{path} was trained with seed {state.seed}; "
                                 f"resume it with --seed {state.seed}")
            if state.optimizer not in ("", self.plan.optimizer):
                raise InputError(f"{path} was trained with the optimizer {state.optimizer}, the "
                                 f"plan has {self.plan.optimizer}; resume it with a plan made with "
                                 f"--optimizer {state.optimizer}")
        if found.faults and not self.options.partial:
            raise InputError(next(iter(found.faults.values())))

    @property
    def _states(self) -> tuple[str, ...]:
        """What the optimizer keeps for each weight; nothing for an inference."""
        return self.executor.rule.optimizer.state if self.executor.training is not None else ()

    def _rows(self, layer: str, groups: Collection[str]) -> dict[str, np.ndarray]:
        p = self.executor.parameters[layer]
        of = next(each for each in self.network.stateful if each.name == layer)
        shapes = checkpoint.tensor_shapes(self.network, of, self._states)
        return checkpoint.resume_rows(self.options.resume, layer, p.start, p.stop, self.plan.dtype,
                                      [name for name in shapes if name.split("/")[0] in groups])

    def _damaged(self, known: Collection[str]) -> dict[str, str]:
        """Groups of tensors, beside those known, of which this rank cannot read its rows."""
        out = {}
        for layer in self.executor.parameters:
            for group in checkpoint.GROUPS:
                if f"{group}/{layer}" in known:
                    continue
                try:
                    self._rows(layer, (group,))
                except InputError as err:
                    out[f"{group}/{layer}"] = str(err)
        return out

    def _load(self, missing: Collection[str]) -> None:
        """Puts this rank's rows in place. A layer without its weights starts anew, its optimiser
        too.
        """
        for layer, p in self.executor.parameters.items():
            groups = [g for g in checkpoint.GROUPS if f"{g}/{layer}" not in missing]
            if "params" in groups:
                global_tensors.restore(self.executor, p, self._rows(layer, groups))

    def sums(self) -> LossSums:
        return LossSums(self.network.loss.counts_correct)

    def time(self, program: Program, begin: float, loss: float, step: int) -> None:
        """Notes what an iteration, or pass, begun at `begin` has taken.

        Raises
        ------
        RunError
            On every rank, where the loss is not finite: the first layer in which that shows.
        """
        took = perf_counter() - begin
        if not math.isfinite(loss):
            self._not_finite(step, loss)
        self.stamps.add(step, program, begin)
        self.measured.iterations.add(step, (took, loss))
        self.last_s, self.last_loss = took, loss

    def _not_finite(self, step: int, loss: float) -> None:
        """Find the first layer in which the trouble shows, on any rank, and stop."""
        names = [layer.name for layer in self.network.layers]
        mine = self.detector.first()
        where = int(self.world.min(names.index(mine) if mine else len(names)))
        name = names[where] if where < len(names) else self.network.layers[-1].name
        remedy = "look at the data and the weights"
        if self.executor.training is not None:
            remedy = "try a smaller --rate, or look at the data"
        raise on_all_ranks(RunError(
            f"the loss is {loss} at step {step}: the first values that are not finite are in the "
            f"output of layer '{name}'; {remedy}"
        ))


def require_ranks(world: World, plan: Plan) -> None:
    """Check that the job has as many ranks as the plan."""
    if world.size != plan.ranks:
        raise on_all_ranks(InputError(
            f"the plan is for {plan.ranks} ranks, but this job has {world.size}; start it with: "
            f"mpiexec -n {plan.ranks} (or srun -n {plan.ranks})"
        ))


def open_data(executor: Executor, path: str, seed: int, split: str,
              augment: tuple[Augmentation, ...]) -> Loader:
    """A rank's view of a part of a data file (`Loader`'s splits)."""
    plan, network = executor.plan, executor.network
    batch = plan.batch
    box = ((0, len(executor.image_rows)), *executor.image_box)
    return Loader(
        path, box, ((0, batch), *executor.truth_box), batch, plan.dtype, seed, split == "train",
        split, shape=network.image_shape, classes=network.classes, rows=executor.image_rows,
        augment=augment,
    )
