"""The common part of all runs on the ranks: schedules bound, weights made or read, data opened, and
measurements.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data import dataset
from hpcpar.data.augment import Augmentation
from hpcpar.data.loader import Loader
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.nonfinite import NonfiniteDetector
from hpcpar.runtime.optimizer import SGD
from hpcpar.runtime.program import Program
from hpcpar.runtime.stamps import Stamps
from hpcpar.schedule.steps import Schedule
from hpcpar.train import checkpoint, global_tensors


@dataclass(frozen=True)
class JobOptions:
    """Options of a run.

    Attributes
    ----------
    epochs, steps : int
        Length of the whole training, resumed parts included; `steps` wins where it is not 0.
    checkpoint, resume : str
        Files; empty for none.
    augment : tuple of Augmentation
        Changes of the training images.
    """

    data: str
    epochs: int = 1
    steps: int = 0
    checkpoint: str = ""
    resume: str = ""
    seed: int = 0
    sgd: SGD = field(default_factory=SGD)
    direct: bool = False
    augment: tuple[Augmentation, ...] = ()


@dataclass
class JobMeasurements:
    """This rank's measurements; the record's arrays without the ranks axis."""

    seconds: list[np.ndarray] = field(default_factory=list)
    iteration_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    messages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sent_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    samples: int = 0


@dataclass
class LossSums:
    """Mean loss and accuracy of samples that came in batches, the last perhaps not full (None where
    no sample can be right).
    """

    batch: int
    counts: bool
    loss: float = 0.0
    correct: float = 0.0

    def add(self, loss: float, correct: float) -> None:
        """A batch's: its loss is a sum divided by the full batch, whatever counts in it."""
        self.loss += loss * self.batch
        self.correct += correct

    def of(self, samples: int) -> tuple[float, float | None]:
        return self.loss / samples, self.correct / samples if self.counts else None


class Job:
    """One rank of a run, set up.

    Parameters
    ----------
    training : bool
        False for the forward pass alone: no gradients are allocated.

    Attributes
    ----------
    schedule : Schedule
        The schedule that is measured: the training iteration, or the forward pass.

    Raises
    ------
    InputError
        On every rank alike, before the first message: what is wrong with files, sizes or options.
    """

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: JobOptions, training: bool) -> None:
        require_ranks(world, plan)
        self.world, self.network, self.plan, self.options = world, network, plan, options
        forward: Schedule = world.agree(lambda: schedule_for(network, plan, training=False))
        self.schedule = world.agree(lambda: schedule_for(network, plan)) if training else forward
        self.communicator = Communicator(world, backend, options.direct)
        self.executor = Executor(network, plan, self.schedule if training else None,
                                 self.communicator, backend, options.seed, forward)
        self.detector = NonfiniteDetector(self.executor)
        self.measured = JobMeasurements()
        self.stamps = Stamps(world, len(self.schedule.steps))

    @property
    def has_test(self) -> bool:
        """True where the data file has a held-out part."""
        return "test_images" in dataset.info(self.options.data)

    def open(self, split: str) -> Loader:
        """This rank's view of a part of the data file."""
        return open_data(self.executor, self.options.data, self.options.seed, split,
                         self.options.augment)

    def restore(self) -> int:
        """Load this rank's rows from a checkpoint of any plan; returns the iterations already done.
        """
        path, plan = self.options.resume, self.plan
        state = checkpoint.check(path, self.network)
        if self.executor.training is not None:
            if state["seed"] != self.options.seed:
                raise InputError(f"{path} was trained with seed {state['seed']}; "
                                 f"resume it with --seed {state['seed']}")
            before = state.get("optimizer", plan.optimizer)
            if before != plan.optimizer:
                raise InputError(f"{path} was trained with the optimizer {before}, the plan has "
                                 f"{plan.optimizer}; resume it with a plan made with "
                                 f"--optimizer {before}")
        for name, p in self.executor.parameters.items():
            global_tensors.restore(self.executor, p,
                                   checkpoint.resume_rows(path, name, p.start, p.stop, plan.dtype))
        return int(state["step"])

    def sums(self) -> LossSums:
        return LossSums(int(self.plan.batch),
                        isinstance(self.network.layers[-1], SoftmaxCrossEntropy))

    def timed(self, program: Program, begin: float, loss: float, step: int) -> None:
        """Note what an iteration, or pass, begun at `begin` has taken.

        Raises
        ------
        RunError
            On every rank, where the loss is not finite: the first layer in which that shows.
        """
        took = time.perf_counter() - begin
        if not math.isfinite(loss):
            self._not_finite(step, loss)
        self.measured.seconds.append(program.seconds.astype(np.float32))
        self.stamps.add(program, begin)
        self.measured.iteration_s.append(took)
        self.measured.loss.append(loss)

    def counted(self) -> None:
        """Note what the iteration before this call has sent."""
        t, steps = self.communicator.trace, self.schedule.steps
        self.measured.messages = np.array([t.messages.get(s.index, 0) for s in steps], np.int64)
        self.measured.sent_bytes = np.array([t.sent_bytes.get(s.index, 0) for s in steps], np.int64)

    def _not_finite(self, step: int, loss: float) -> None:
        """Find the first layer in which the trouble shows, on any rank, and stop."""
        names = [layer.name for layer in self.network.layers]
        mine = self.detector.first()
        where = int(self.world.least(names.index(mine) if mine else len(names)))
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
    batch = int(plan.batch)
    box = ((0, len(executor.image_rows)), *executor.image_box)
    return Loader(
        path, box, ((0, batch), *executor.truth_box), batch, plan.dtype, seed, split == "train",
        split, shape=network.image_shape, classes=network.classes, rows=executor.image_rows,
        augment=augment,
    )
