"""Runs a module's schedule on one rank, with a loss that the caller computes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.device_options import GpuOptions, kernels_of_all
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels import backend
from hpcpar.kernels.conv_choice import AUTO, TORCH
from hpcpar.kernels.interface import Array
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import Shape
from hpcpar.plan.boxes import Box, whole_box
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.schedule.runnable import require
from hpcpar.schedule.steps import Schedule
from hpcpar.torch.device_tensors import DeviceTensors
from hpcpar.train.job import require_ranks

T = TypeVar("T")
#: Relative difference between equal losses that rounding explains.
TOLERANCE = 1e-4
#: Maps the number of a micro-batch and its outputs to the gradients of the outputs.
LossOf = Callable[[int, list[Tensor]], Sequence[Tensor]]


class PassObserver(Protocol):
    """An observer of an engine's passes."""

    def begin(self) -> None:
        """An iteration starts."""

    def ran(self, began_s: float, complete: bool) -> None:
        """A pass that began at `began_s` has ended; `complete` if it ends the iteration."""


class Engine:
    """One rank's executor of a network whose loss the caller computes (`Outputs`).

    All ranks make and call it together.

    Attributes
    ----------
    forward_only : bool
        Whether there is no training.
    schedule : Schedule
        The steps of an iteration: forward, backward, and the sums of gradients.
    rows : list of numpy.ndarray
        Rows of the mini-batch whose outputs this rank holds, by micro-batch.
    samples : numpy.ndarray
        Rows of the mini-batch whose image or label this rank needs; row 0 if it needs none.
    iterations, evaluations : int
        Numbers of training passes and of evaluations that have started.
    under_way : bool
        True between a forward pass and its backward pass.
    """

    def __init__(self, world: World, network: Network, plan: Plan, seed: int,
                 kernels: str = AUTO, device: str = "cpu", forward_only: bool = False) -> None:
        require_ranks(world, plan)
        world.agree(lambda: require(network, plan, not forward_only))
        self.forward_only = forward_only
        self.world, self.network, self.plan = world, network, plan
        forward: Schedule = world.agree(lambda: schedule_for(network, plan, training=False))
        self.schedule: Schedule = forward if forward_only else world.agree(
            lambda: schedule_for(network, plan))
        calibrated = plan.machine.convolutions if plan.machine else None
        if device == "cpu" and kernels == AUTO and not calibrated:
            kernels = TORCH  # which is there
        of_all = kernels_of_all(world, kernels)
        products = GpuOptions(device=device).math_for(plan.precision)
        self.communicator = Communicator(world, world.agree(lambda: backend(
            device, products, world.local_rank, of_all, calibrated)))
        self.tensors = DeviceTensors(self.communicator.backend)
        self._xp = self.communicator.backend.xp
        self.executor = Executor(network, plan, None if forward_only else self.schedule,
                                 self.communicator, self.communicator.backend, seed, forward)
        self.executor.give_outputs_to(self)
        self.rows = [microbatch.rows for microbatch in self.executor.passes]
        needed = np.union1d(self.own_rows, self.executor.image_rows).astype(np.int64)
        self.samples = needed if len(needed) else np.zeros(1, np.int64)
        config = plan.configs[network.loss.name]
        self._lives = self.executor.lives(network.loss.name)
        #: True on one of the ranks with the same outputs: sums over ranks count only this one.
        self.counts = self._lives and owned(network, network.loss, config, plan.batch).replica(
            world.rank) == 0
        last = range(int(config.first), int(config.first + config.ranks))
        #: Communicator of the ranks that hold outputs, and the first of these ranks.
        self.last_ranks: Any = world.comm.Create_group(world.comm.Get_group().Incl(
            list(last))) if self._lives else None
        self.first_of_last = last[0]
        #: Communicator of the ranks that compute the loss together.
        self.group: Any = world.comm
        self.iterations = self.evaluations = 0
        self._loss: LossOf | None = None
        self._outputs: dict[int, list[Array]] = {}
        self._given: dict[int, Sequence[Array]] = {}
        self._of_images: dict[int, Array] = {}
        self.under_way = False
        self.recording: PassObserver | None = None
        #: The loss of the last iteration; nan if unknown.
        self.last_loss = math.nan
        self._checked = False

    # -- places ------------------------------------------------------------------------------------
    def pixels(self, which: int, rank: int | None = None) -> Box:
        """A rank's box (by default this rank's) of channels and pixels of output `which`."""
        needed = self.executor.passes[0].edges[self.network.loss.name][which].needed
        rank = self.world.rank if rank is None else rank
        if not needed.holds(rank):
            return whole_box(self.layer_shape(which))
        return needed.box(rank)[1:]

    def layer_shape(self, which: int) -> Shape:
        """Shape of a sample of output `which`, of all ranks."""
        return self.network.input_shapes(self.network.loss)[which]

    @property
    def own_rows(self) -> NDArray[np.int64]:
        """Rows of the mini-batch whose outputs this rank holds."""
        return np.concatenate(self.rows)

    # -- the caller of `Outputs` -------------------------------------------------------------------
    def take(self, part: int, outputs: Sequence[Array]) -> None:
        """Keep the outputs of a micro-batch; in `step`, compute its loss at once."""
        self._outputs[part] = [*map(self._copied, outputs)]
        if self._loss is not None:
            given = self._loss(part, [*map(self.tensors.to_torch, self._outputs[part])])
            self._given[part] = [*map(self.tensors.from_torch, given)]

    def _copied(self, output: Array) -> Array:
        """A copy of an output, in the type of the weights."""
        copied = self.communicator.backend.empty(output.shape, self.plan.dtype)
        self.communicator.backend.copy(output, copied)
        return copied

    def gradients(self, part: int) -> Sequence[Array]:
        """The gradients of a micro-batch's outputs."""
        return self._given[part]

    def take_gradient(self, part: int, gradient: Array) -> None:
        """Keep the gradient of a micro-batch's images."""
        self._of_images[part] = self._copied(gradient)

    # -- calls that all ranks make together --------------------------------------------------------
    def share(self, call: str, value: T) -> dict[int, T]:
        """The value of each rank that computes the loss; see `World.share`."""
        return self.world.share(call, value, self.group)

    def require_alike_losses(self, loss: float) -> None:
        """Check that all ranks that compute the loss have the same finite loss.

        Raises
        ------
        RunError
            On all of these ranks.
        """
        losses = self.share("the comparison of losses", loss)
        self.require_finite("loss", losses)
        first = min(losses)
        for rank, value in losses.items():
            if not np.isclose(value, losses[first], TOLERANCE, 0.0):
                raise self.failure(
                    f"the loss is {losses[first]:.6g} on rank {first} and {value:.6g} on rank "
                    f"{rank}: take means and sums over all ranks, with hpcpar.torch.mean and "
                    "hpcpar.torch.sum")

    def require_finite(self, what: str, values: dict[int, float]) -> None:
        """Check a value of each rank."""
        bad = [rank for rank, value in values.items() if not math.isfinite(value)]
        if bad:
            raise self.failure(
                f"the {what} is {values[bad[0]]} in iteration {self.iterations} (rank {bad[0]}, "
                f"{len(bad)} of {len(values)} ranks); lower the learning rate, or check the inputs")

    def failure(self, message: str) -> InputError | RunError:
        """The error that all ranks raise that compute the loss."""
        error = RunError(message)
        return on_all_ranks(error) if self.group is self.world.comm else error

    def images_gradient(self) -> Tensor:
        """The gradient of the whole mini-batch of images after `backward`, on every rank."""
        network, executor, rank = self.network, self.executor, self.world.rank
        images = network.layers[0]
        layout = owned(network, images, self.plan.configs[images.name], self.plan.batch)
        own = np.zeros((self.plan.batch, *network.image_shape), self.plan.dtype)
        if layout.holds(rank) and layout.replica(rank) == 0:
            places = [executor.image_rows, *(np.arange(*i) for i in executor.image_box)]
            with self.tensors.turn():
                parts = [self.tensors.to_torch(self._of_images[part]).cpu()
                         for part in range(len(self.rows))]
            own[np.ix_(*places)] = torch.cat(parts).numpy()
        self.share("the gradient of the images", own.shape)
        total = np.empty_like(own)
        self.world.comm.Allreduce(own, total)
        return torch.from_numpy(total)

    # -- running -----------------------------------------------------------------------------------
    @property
    def training(self) -> Program:
        """The program of a training iteration."""
        assert self.executor.training is not None
        return self.executor.training

    def evaluate(self, images: Tensor) -> list[Tensor]:
        """This rank's part of the outputs, in evaluation."""
        self._leave()
        self.world.lookout.place = f"the evaluation after iteration {self.iterations}"
        assert self.executor.evaluation is not None
        self.evaluations += 1
        sent = self.communicator.trace
        before = {**sent.messages}, {**sent.sent_bytes}
        with self.tensors.turn():
            self.executor.run_outside(self.executor.evaluation, self._images(images),
                                      self.evaluations, False)
            outputs = self._joined()
        sent.messages, sent.sent_bytes = before
        return outputs

    def forward(self, images: Tensor) -> list[Tensor]:
        """This rank's part of the outputs, in training."""
        forward_end = self.training.forward_end
        if forward_end is None:
            raise InputError(
                "the plan interleaves forward and backward passes of its micro-batches (order "
                "1f1b); call model.step(images, labels, loss), or plan with order='gpipe'")
        self._begin("the forward pass of iteration")
        with self.tensors.turn():
            self._run(self._images(images), end=forward_end)
            # Messages may be in flight, and others may wait for them before the backward pass.
            self.communicator.complete()
            outputs = self._joined()
        self.under_way = True
        return outputs

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Compute the gradients of all weights, from the gradients of the last `forward`'s outputs.
        """
        forward_end = self.training.forward_end
        assert forward_end is not None
        ends = np.cumsum([len(rows) for rows in self.rows]).tolist()
        self.world.lookout.place = f"the backward pass of iteration {self.iterations}"
        with self.tensors.turn():
            arrays = [*map(self.tensors.from_torch, gradients)]
            self._given = {part: [g[end - len(rows):end] for g in arrays]
                           for part, (rows, end) in enumerate(zip(self.rows, ends, strict=True))}
            self._run(None, first=forward_end)
        self.under_way = False
        self._check()

    def step(self, images: Tensor, loss: LossOf) -> None:
        """Run forward and backward passes; `loss` gives the gradients of each micro-batch."""
        self._begin("iteration")
        self._loss = loss
        try:
            with self.tensors.turn():
                self._run(self._images(images))
        finally:
            self._loss = None
        self._check()

    def _begin(self, place: str) -> None:
        self._leave()
        if self.recording is not None:
            self.recording.begin()
        self.communicator.trace.clear()
        self.iterations += 1
        self.world.lookout.place = f"{place} {self.iterations}"

    def _images(self, images: Tensor) -> Array:
        """The images of a pass; the executor keeps them until the next one."""
        return self.tensors.from_torch(images)

    def _run(self, images: Array | None, first: int = 0, end: int = sys.maxsize) -> None:
        """Run steps `first` to `end` (exclusive) of an iteration."""
        begin = perf_counter()
        self.executor.run_outside(self.training, images, self.iterations - 1, True, first, end)
        if self.recording is not None:
            self.recording.ran(begin, complete=end == sys.maxsize)

    def _leave(self) -> None:
        """Abandon an iteration that had no backward pass."""
        if self.under_way:
            assert self.training.forward_end is not None
            self.training.abandon(self.training.forward_end)
            self.under_way = False

    def _check(self) -> None:
        """Compare the messages of the first iteration with the schedule."""
        if not self._checked:
            trace.check(self.communicator.trace, self.schedule, self.world.rank)
            self._checked = True

    def _joined(self) -> list[Tensor]:
        """The outputs of all micro-batches; on a rank without outputs, arrays of zero samples."""
        if not self._lives:
            shapes = self.network.input_shapes(self.network.loss)
            return [self.tensors.to_torch(self._xp.zeros((0, *shape), self.plan.dtype))
                    for shape in shapes]
        parts = [self._outputs[part] for part in range(len(self.rows))]
        return [self.tensors.to_torch(self._xp.concatenate(arrays) if len(arrays) > 1
                                      else arrays[0]) for arrays in zip(*parts, strict=True)]

    # -- sums --------------------------------------------------------------------------------------
    def weight_of(self, part: int) -> float:
        """A micro-batch's share of the mini-batch."""
        return self.executor.passes[part].samples / self.plan.batch
