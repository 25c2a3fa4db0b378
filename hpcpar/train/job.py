"""The parts that training and inference share: setup of a rank, restored weights, measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
from hpcpar.runtime.program import StepTimes
from hpcpar.runtime.reservoir import MAX_ITERATIONS, Reservoir
from hpcpar.runtime.stamps import Stamps
from hpcpar.schedule.steps import Schedule
from hpcpar.train import checkpoint, global_tensors
from hpcpar.train.checkpoint import CheckedCheckpoint, CheckpointState
from hpcpar.train.job_options import JobOptions


class EpochEnd(NamedTuple):
    """The result of an epoch; NaN where it was not measured. For the counts see `ClassCounts`."""

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
        (seconds, loss) per iteration.
    epochs : Reservoir of EpochEnd
    messages, sent_bytes : numpy.ndarray
        [steps] messages and bytes that one iteration sends.
    samples : int
        Training samples in the data file.
    """

    def __init__(self, steps: int) -> None:
        self.iterations: Reservoir[tuple[float, float]] = Reservoir(MAX_ITERATIONS)
        self.epochs: Reservoir[EpochEnd] = Reservoir(MAX_ITERATIONS)
        self.messages, self.sent_bytes = np.zeros((2, steps), np.int64)
        self.samples = 0
        #: Seconds between the end of the schedule and the next iteration.
        self.outside: Reservoir[float] = Reservoir(MAX_ITERATIONS)

    @property
    def losses(self) -> list[float]:
        """Losses of the iterations in the reservoir."""
        return [loss for _, loss in self.iterations.values]


@dataclass
class LossSums:
    """Mean loss and accuracy over the counted samples of several batches.

    Attributes
    ----------
    counts_correct : bool
        The loss has predictions that can be correct; otherwise the accuracy is None.
    """

    counts_correct: bool
    loss: float = 0.0
    correct: float = 0.0
    counted: float = 0.0

    def add(self, loss: float, correct: float, counted: float) -> None:
        """Adds a batch: its mean loss and its number of correct samples among `counted`."""
        self.loss += loss * counted
        self.correct += correct
        self.counted += counted

    def means(self) -> tuple[float, float | None]:
        """Loss and accuracy; NaN if no sample counts."""
        count = self.counted or math.nan
        return self.loss / count, self.correct / count if self.counts_correct else None


class MeasuredRun:
    """One rank's measurements for the record of a run. The constructor is collective.

    Attributes
    ----------
    schedule : Schedule
        The measured schedule: a training iteration, or the forward pass.
    start, step : int
        The first iteration of this run, and the number of iterations done.
    """

    def __init__(self, world: World, executor: Executor, schedule: Schedule) -> None:
        self.world, self.executor, self.schedule = world, executor, schedule
        self.network, self.plan = executor.network, executor.plan
        self.communicator = executor.communicator
        self.measured = JobMeasurements(len(schedule.steps))
        self.stamps = Stamps(world, len(schedule.steps),
                             few=executor.replays is not None)
        self.start, self.step = 0, 0

    def count_messages(self) -> None:
        """Copies the messages and bytes of the last iteration from the trace."""
        t, steps = self.communicator.trace, self.schedule.steps
        self.measured.messages = np.array([t.messages.get(s.index, 0) for s in steps], np.int64)
        self.measured.sent_bytes = np.array([t.sent_bytes.get(s.index, 0) for s in steps], np.int64)


class Job(MeasuredRun):
    """One rank of a run, ready to iterate.

    Parameters
    ----------
    training : bool
        False for the forward pass only, without memory for gradients.

    Attributes
    ----------
    loader : Loader
        Loads the samples of the run.
    last_s, last_loss : float
        Time (s) and loss of the last iteration.

    Raises
    ------
    InputError
        A file, size or option is wrong. Every rank raises it before the first message.
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
                                         communicator, backend, options.seed, forward,
                                         options.graphs == "auto"), schedule)
        self.detector = NonfiniteDetector(self.executor)
        #: State in the checkpoint from which the run starts; None for a new or unknown one.
        self.resumed: CheckpointState | None = None
        #: One line for each group of tensors that a partial checkpoint lacks.
        self.not_restored: list[str] = []
        self.last_s, self.last_loss = 0.0, math.nan

    @property
    def has_test(self) -> bool:
        """True if the data file has a held-out part."""
        return "test_images" in dataset.info(self.options.data)

    def open(self, split: str) -> Loader:
        """Loads this rank's part of a split and sets the executor's normalization to match."""
        loader = open_data(self.executor, self.options.data, self.options.seed, split,
                           self.options.augment)
        self.executor.normalize_by(loader.mean, loader.scale)
        return loader

    def restore(self) -> int:
        """Loads this rank's rows from a checkpoint, which any plan may have written.

        Collective.

        Returns
        -------
        int
            Iterations that the checkpoint's training has done.

        Raises
        ------
        InputError
            The checkpoint does not match, or is damaged and --partial is not given. Every rank
            raises it.
        """
        path, partial = self.options.resume, self.options.partial
        checked = self.world.agree(lambda: checkpoint.check(path, self.network, self._states))
        self.world.agree(lambda: self._require_match(checked))
        missing = dict(checked.faults)
        if partial:
            for damaged in self.world.comm.allgather(self._damaged(checked.faults)):
                missing |= damaged
        self.not_restored = list(missing.values())
        self.world.agree(lambda: self._load(missing))
        self.resumed = checked.state
        return checked.state.step if checked.state is not None else 0

    def _require_match(self, checked: CheckedCheckpoint) -> None:
        """Checks seed and optimizer, and without --partial that the checkpoint is complete."""
        path, state = self.options.resume, checked.state
        if state is not None and self.executor.training is not None:
            if state.step and state.seed != self.options.seed:  # weights alone have no seed
                raise InputError(f"{path} was trained with seed {state.seed}; "
                                 f"resume it with --seed {state.seed}")
            if state.optimizer not in ("", self.plan.optimizer):
                raise InputError(f"{path} was trained with the optimizer {state.optimizer}, but "
                                 f"the plan uses {self.plan.optimizer}; resume it with a plan made "
                                 f"with --optimizer {state.optimizer}")
        if checked.faults and not self.options.partial:
            raise InputError(next(iter(checked.faults.values())))

    @property
    def _states(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors; empty for inference."""
        return self.executor.rule.optimizer.state if self.executor.training is not None else ()

    def _rows(self, layer: str, groups: Collection[str]) -> dict[str, np.ndarray]:
        """This rank's rows of a layer's tensors in the groups ``params`` and ``optimizer``."""
        p = self.executor.parameters[layer]
        shapes = checkpoint.tensor_shapes(self.network, self.network.by_name[layer], self._states)
        return checkpoint.resume_rows(self.options.resume, layer, p.start, p.stop, self.plan.dtype,
                                      [name for name in shapes if name.split("/")[0] in groups])

    def _damaged(self, known: Collection[str]) -> dict[str, str]:
        """Errors by group, for groups not in `known` whose rows this rank cannot read."""
        errors = {}
        for layer in self.executor.parameters:
            for group in checkpoint.GROUPS:
                if f"{group}/{layer}" in known:
                    continue
                try:
                    self._rows(layer, (group,))
                except InputError as err:
                    errors[f"{group}/{layer}"] = str(err)
        return errors

    def _load(self, missing: Collection[str]) -> None:
        """Restores this rank's rows. A layer whose weights are missing keeps its initial weights
        and optimizer state.
        """
        for layer, p in self.executor.parameters.items():
            groups = [g for g in checkpoint.GROUPS if f"{g}/{layer}" not in missing]
            if "params" in groups:
                global_tensors.restore(self.executor, p, self._rows(layer, groups))

    def sums(self) -> LossSums:
        return LossSums(self.network.loss.counts_correct)

    def time(self, times: Callable[[], StepTimes], begin_s: float, end_s: float, loss: float,
             step: int) -> None:
        """Adds an iteration, or a forward pass, to the measurements; `times` returns its step
        times.

        Raises
        ------
        RunError
            The loss is not finite. Every rank raises it and names the first affected layer.
        """
        if not math.isfinite(loss):
            self._not_finite(step, loss)
        self.stamps.add(step, times, begin_s)
        took = end_s - begin_s
        self.measured.iterations.add(step, (took, loss))
        self.last_s, self.last_loss = took, loss

    def _not_finite(self, step: int, loss: float) -> None:
        """Find the first layer with non-finite values on any rank, and raise the error."""
        names = [layer.name for layer in self.network.layers]
        mine = self.detector.first()
        first = int(self.world.min(names.index(mine) if mine else len(names)))
        name = names[min(first, len(names) - 1)]
        remedy = "check the data and the weights"
        if self.executor.training is not None:
            remedy = "try a smaller --rate, or check the data"
        raise on_all_ranks(RunError(
            f"the loss is {loss} at step {step}: non-finite values first appear in the output of "
            f"layer '{name}'; {remedy}"
        ))


def require_ranks(world: World, plan: Plan) -> None:
    """Check that the job and the plan have the same number of ranks."""
    if world.size != plan.ranks:
        raise on_all_ranks(InputError(
            f"the plan is for {plan.ranks} ranks, but this job has {world.size}; start it with: "
            f"mpiexec -n {plan.ranks} (or srun -n {plan.ranks})"
        ))


def open_data(executor: Executor, path: str, seed: int, split: str,
              augment: tuple[Augmentation, ...]) -> Loader:
    """A rank's loader for one split of a data file (see `Loader`)."""
    plan, network = executor.plan, executor.network
    box = ((0, len(executor.image_rows)), *executor.image_box)
    return Loader(
        path, box, ((0, plan.batch), *executor.truth_box), plan.batch, plan.dtype, seed,
        split == "train", split, shape=network.image_shape, classes=network.classes,
        extents=network.output_extents, rows=executor.image_rows, augment=augment,
    )
