"""The training loop: batches in, iterations through the executor, checkpoints and the record out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.cost.choose import schedule_for
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Schedule
from hpcpar.train import checkpoint, gather
from hpcpar.train.executor import Executor
from hpcpar.train.loader import Loader
from hpcpar.train.optimizer import SGD


@dataclass(frozen=True)
class Options:
    """What a run is told besides its plan.

    Attributes
    ----------
    epochs, steps : int
        Length of the whole training, resumed parts included; `steps` wins where it is not 0.
    checkpoint, resume : str
        Files; empty for none.
    """

    data: str
    epochs: int = 1
    steps: int = 0
    checkpoint: str = ""
    resume: str = ""
    seed: int = 0
    sgd: SGD = field(default_factory=SGD)
    direct: bool = False


@dataclass
class Progress:
    """What the loop tells while it runs (the same on every rank)."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    iteration_s: float
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    epoch_done: bool = False


@dataclass
class Measured:
    """This rank's measurements; the record's arrays without the ranks axis."""

    seconds: list[np.ndarray] = field(default_factory=list)
    iteration_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    messages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sent_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    samples: int = 0


class Training:
    """One rank of a run, set up: data opened, weights made or resumed, schedules bound.

    Raises
    ------
    InputError
        On every rank alike, before the first message of the training: what is wrong with files, sizes or options.
    """

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend, options: Options) -> None:
        if world.size != plan.ranks:
            raise on_all_ranks(InputError(
                f"the plan is for {plan.ranks} ranks, but this job has {world.size}; start it with: "
                f"mpiexec -n {plan.ranks} (or srun -n {plan.ranks})"
            ))
        self.world, self.network, self.plan, self.options = world, network, plan, options
        self.schedule: Schedule = schedule_for(network, plan)
        self.communicator = Communicator(world, backend, options.direct)
        evaluation = schedule_for(network, plan, training=False)
        self.executor = Executor(network, plan, self.schedule, self.communicator, backend, options.seed, evaluation)
        self.loader = world.agree(lambda: self._loader("train"))
        self.test = world.agree(self._test_loader)
        self.start = world.agree(self._resume) if options.resume else 0
        self.steps = options.steps or options.epochs * self.loader.batches_per_epoch
        self.measured = Measured(samples=self.loader.samples)
        if self.start >= self.steps:
            raise on_all_ranks(
                InputError(f"{options.resume} is already at step {self.start} of {self.steps}; ask for more with --epochs or --steps")
            )

    def _loader(self, split: str) -> Loader:
        e, p = self.executor, self.plan
        return Loader(
            self.options.data, e.image_box, e.label_interval, p.batch, p.dtype, self.options.seed, split == "train", split,
            shape=self.network.image_shape, classes=self.network.classes,
        )

    def _test_loader(self) -> Loader | None:
        from hpcpar.train.dataset import info

        return self._loader("test") if "test_images" in info(self.options.data) else None

    def _resume(self) -> int:
        """Load this rank's rows from a checkpoint of any plan; returns the iterations already done."""
        path, dtype = self.options.resume, self.plan.dtype
        state = checkpoint.check(path, self.network)
        if state["seed"] != self.options.seed:
            raise InputError(f"{path} was trained with seed {state['seed']}; resume it with --seed {state['seed']}")
        move = self.executor.backend.to_device
        for name, p in self.executor.parameters.items():
            rows = checkpoint.read_rows(path, name, p.start, p.stop, dtype)
            for host, array in (
                (rows.weight, p.weight), (rows.bias, p.bias),
                (rows.weight_velocity, p.velocity_weight), (rows.bias_velocity, p.velocity_bias),
            ):
                if host is not None and array is not None:
                    move(host, array)
        return int(state["step"])

    def run(self, tell: Callable[[Progress], None]) -> Measured:
        """Train to the end; `tell` hears of every iteration."""
        per_epoch = self.loader.batches_per_epoch
        epochs = math.ceil(self.steps / per_epoch)
        step, correct = self.start, 0.0
        sgd = self.options.sgd
        counts_correct = self.network.layers[-1].kind == "softmax_cross_entropy"
        with self.loader.prefetch(step // per_epoch, step % per_epoch, self.steps - step) as batches:
            for batch in batches:
                self.communicator.trace.clear()
                begin = time.perf_counter()
                loss, right = self.executor.iterate(
                    batch.images, batch.labels, step, sgd.rate_at(step / self.steps), sgd.momentum, sgd.decay
                )
                took = time.perf_counter() - begin
                if not math.isfinite(loss):
                    self._not_finite(step, loss)
                if step == self.start:
                    trace.check(self.communicator.trace, self.schedule, self.world.rank)
                self._measure(loss, took)
                correct += right
                step += 1
                done = step % per_epoch == 0 or step == self.steps
                now = Progress(batch.epoch + 1, epochs, step, self.steps, loss, took, epoch_done=done)
                if done:
                    seen = ((step - 1) % per_epoch + 1) * self.plan.batch
                    if self.start > (step - 1) // per_epoch * per_epoch:
                        seen -= self.start % per_epoch * self.plan.batch
                    now.train_accuracy = correct / seen if counts_correct else None
                    now.test_accuracy = self._evaluate() if counts_correct else None
                    self.measured.train_accuracy.append(math.nan if now.train_accuracy is None else now.train_accuracy)
                    self.measured.test_accuracy.append(math.nan if now.test_accuracy is None else now.test_accuracy)
                    correct = 0.0
                    if self.options.checkpoint:
                        self._save(step)
                tell(now)
        t = self.communicator.trace
        self.measured.messages = np.array([t.messages.get(s.index, 0) for s in self.schedule.steps], np.int64)
        self.measured.sent_bytes = np.array([t.sent_bytes.get(s.index, 0) for s in self.schedule.steps], np.int64)
        return self.measured

    def _measure(self, loss: float, took: float) -> None:
        self.measured.seconds.append(self.executor.training.seconds.astype(np.float32))
        self.measured.iteration_s.append(took)
        self.measured.loss.append(loss)

    def _not_finite(self, step: int, loss: float) -> None:
        """Find the first layer in which the trouble shows, on any rank, and stop."""
        names = [layer.name for layer in self.network.layers]
        mine = self.executor.first_not_finite()
        where = int(self.world.least(names.index(mine) if mine else len(names)))
        name = names[where] if where < len(names) else self.network.layers[-1].name
        raise on_all_ranks(RunError(
            f"the loss is {loss} at step {step}: the first values that are not finite are in the output of layer '{name}'; "
            "try a smaller --rate, or look at the data"
        ))

    def _evaluate(self) -> float | None:
        """Accuracy on the held-out part of the data; None where the file has none."""
        if self.test is None:
            return None
        before = {**self.communicator.trace.messages}, {**self.communicator.trace.sent_bytes}
        right = 0.0
        for i in range(self.test.batches_per_epoch):
            right += self.executor.evaluate(*self.test.batch(0, i))[1]
        self.communicator.trace.messages, self.communicator.trace.sent_bytes = before
        return right / self.test.samples

    def _save(self, step: int) -> None:
        state: dict[str, Any] = {
            "step": step,
            "epoch": step // self.loader.batches_per_epoch,
            "batch_in_epoch": step % self.loader.batches_per_epoch,
            "seed": self.options.seed,
            "network": self.plan.network.name,
            "shape": list(self.plan.network.shape),
            "classes": self.plan.network.classes,
        }
        weights = gather.tensors(self.executor, self.world, "flat")
        velocities = gather.tensors(self.executor, self.world, "velocity")
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
