"""Comparison of training under a plan with the same training on one rank, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data.augment import AugmentOptions
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.options import checks
from hpcpar.options.checks import magnitude, path, positive
from hpcpar.options.fields import option
from hpcpar.plan.config import Config
from hpcpar.plan.layout import owned
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.optimizer import SGD
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.steps import Schedule
from hpcpar.train.job import require_ranks
from hpcpar.train.rounding import (
    FACTOR,
    QUANTITIES,
    TINY,
    PerturbedRun,
    WatchedRun,
    difference,
    tolerances,
)
from hpcpar.train.verify_batches import Data, SerialData

#: Precisions in which plans are verified.
FORMATS = ("fp64", "fp32", "amp", "amp-fp16")


def whole_gradient(plan: Plan, schedule: Schedule, layer: Layer) -> bool:
    """True if a rank holds the complete sum of a layer's gradient after an iteration."""
    is_summed = any(layer.name in step.covers for step in schedule.comms)
    return plan.synchronization is Synchronization.ALLREDUCE or not is_summed


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(AugmentOptions, section="training"):
    """Options of a verification."""

    data: str = option("", path, "data file from hpcpar data (default: random samples)",
                       "FILE.h5", section="network and data", first=True)
    steps: int = option(3, positive, "number of iterations", "N", first=True)
    tolerance: float | None = option(
        None, magnitude, "largest relative difference that passes (default: for each tensor, from "
        "a serial run perturbed in its last digits)", "SHARE")
    rate: float = option(
        0.001, magnitude, "learning rate; a small one keeps training from amplifying rounding",
        "RATE")
    seed: int = option(0, checks.seed, "seed of initial weights, data and dropout", "N")


@dataclass(frozen=True)
class Difference:
    """A difference and its tolerance, both relative to the norm of the tensor."""

    value: float
    layer: str
    quantity: str
    tolerance: float

    def __str__(self) -> str:
        return f"{self.quantity.replace('_', ' ')} of layer '{self.layer}'"


@dataclass
class Result:
    """The result of a verification.

    Attributes
    ----------
    worst : numpy.ndarray
        [layers, `QUANTITIES`] largest relative difference over ranks, at the step where its ratio
        to the tolerance was largest; -1 where there is nothing to compare.
    tolerance : numpy.ndarray
        [layers, `QUANTITIES`] tolerances at these steps.
    """

    layers: list[str]
    worst: np.ndarray
    tolerance: np.ndarray
    losses: list[float] = field(default_factory=list)
    serial_losses: list[float] = field(default_factory=list)

    def add(self, now: np.ndarray, tolerance: np.ndarray) -> None:
        """Adds the differences after a step and their tolerances."""
        worse = now / np.maximum(tolerance, TINY) > self._ratios
        self.worst = np.where(worse, now, self.worst)
        self.tolerance = np.where(worse, tolerance, self.tolerance)

    @property
    def _ratios(self) -> np.ndarray:
        """Differences over their tolerances."""
        return self.worst / np.maximum(self.tolerance, TINY)

    @property
    def largest(self) -> Difference:
        """The difference with the largest ratio to its tolerance."""
        i, j = map(int, np.unravel_index(int(self._ratios.argmax()), self.worst.shape))
        return Difference(float(self.worst[i, j]), self.layers[i], QUANTITIES[j],
                          float(self.tolerance[i, j]))

    @property
    def passes(self) -> bool:
        """True if all differences are within their tolerances."""
        return self.largest.value <= self.largest.tolerance

    def check(self) -> None:
        """Raise a RunError on every rank if a difference exceeds its tolerance."""
        if not self.passes:
            worst = self.largest
            raise on_all_ranks(RunError(
                f"the plan does not train as one rank does: the {worst} differs by "
                f"{worst.value:.2e} of its norm, more than {worst.tolerance:.1e}; please report it "
                "with the plan file"
            ))


def comparable(network: Network, plan: Plan, precision: str) -> Plan:
    """The plan with the precision of the verification and synchronized batch normalization.

    Local statistics of a rank's samples differ from a serial run by design.
    """
    if plan.fc_passes > 1 and any(layer.random for layer in network.layers[:switch(network)]):
        raise InputError(f"the plan has {plan.fc_passes} FC passes and the network has dropout "
                         "before them, which drops other elements in a serial run; verify it with "
                         "the strategy owt")
    return replace(plan, precision=precision, batch_norm="sync")


def serial_plan(plan: Plan) -> Plan:
    """The same training on one rank."""
    configs = {name: Config() for name in plan.configs}
    return replace(plan, ranks=1, strategy="serial", configs=configs, switch="each",
                   synchronization=Synchronization.ALLREDUCE)


class Verification:
    """One rank of a training run that is compared after every step with a serial run.

    Rank 0 also does the serial run.

    Parameters
    ----------
    plan : Plan
        Result of `comparable`.

    Raises
    ------
    InputError
        A file, size or option is wrong. Every rank raises it.
    """

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: VerifyOptions) -> None:
        require_ranks(world, plan)
        self.world, self.network, self.plan, self.options = world, network, plan, options
        self.sgd = SGD(rate=options.rate)
        self.schedule = world.agree(lambda: schedule_for(network, plan))
        self.executor = Executor(network, plan, self.schedule, Communicator(world, backend),
                                 backend, options.seed)
        batch = plan.batch
        fc_passes = self.executor.fc_passes
        #: Order of the samples in the serial run: its FC passes then see the same samples.
        self.order = np.arange(batch)
        if fc_passes:
            self.order = np.concatenate([p.place(np.arange(p.samples)) for p in fc_passes])
        data = world.agree(lambda: Data(self.executor, options.data, options.seed,
                                        np.arange(batch), options.augment))
        self.trained = WatchedRun(self.executor, data)
        self.serial, self.perturbed = None, None
        if world.rank == 0:
            self.serial = WatchedRun(*self._serial(backend))
            if options.tolerance is None:
                self.perturbed = PerturbedRun(*self._serial(backend), options.seed)
        extents = (len(network.layers), len(QUANTITIES))
        self.result = Result([layer.name for layer in network.layers], np.full(extents, -1.0),
                             np.zeros(extents))

    def _serial(self, backend: Backend) -> tuple[Executor, Data]:
        plan = serial_plan(self.plan)
        schedule = schedule_for(self.network, plan)
        communicator = Communicator(self.world.alone(), backend)
        executor = Executor(self.network, plan, schedule, communicator, backend, self.options.seed)
        return executor, SerialData(executor, self.options.data, self.options.seed, self.order,
                                    self.options.augment)

    def run(self, report: Callable[[int, Result], None]) -> Result:
        """Runs all steps; calls `report` after each.

        Raises
        ------
        RunError
            The messages of a rank differ from the schedule, or the serial run diverges. Every rank
            raises it.
        """
        for step in range(self.options.steps):
            self.executor.communicator.trace.clear()
            loss = self.trained.iterate(step, self.sgd)
            self.world.agree(self._check_trace)
            expected, tolerance = self.world.bcast(self._expect(step))
            if not math.isfinite(expected):
                raise on_all_ranks(RunError(f"the serial run's loss is {expected} at step {step}; "
                                            "try a smaller --rate, or other data"))
            self.result.losses.append(loss)
            self.result.serial_losses.append(expected)
            self.result.add(self._compare(loss, expected), tolerance)
            report(step + 1, self.result)
        return self.result

    def _check_trace(self) -> None:
        trace.check(self.executor.communicator.trace, self.schedule, self.world.rank)

    def _expect(self, step: int) -> tuple[float, np.ndarray]:
        """The loss of the serial run, and all tolerances; valid on rank 0."""
        tolerance = np.full(self.result.worst.shape, self.options.tolerance or 0.0)
        if self.serial is None:
            return 0.0, tolerance
        loss = self.serial.iterate(step, self.sgd)
        if self.perturbed is not None:
            perturbed_loss = self.perturbed.iterate(step, self.sgd)
            tolerance = tolerances(self.serial, self.perturbed)
            updates = np.where(np.array(QUANTITIES) == "weight", step + 1, step)
            noise = OPTIMIZERS[self.plan.optimizer].noise_rates * self.options.rate
            tolerance = np.maximum(tolerance, noise * updates)
            tolerance[-1, 0] += FACTOR * abs(perturbed_loss - loss) / max(abs(loss), TINY)
        return loss, tolerance

    # -- comparing ---------------------------------------------------------------------------------
    def _compare(self, loss: float, expected: float) -> np.ndarray:
        """All differences after a step. Rank 0 broadcasts one serial tensor at a time."""
        now = np.full_like(self.result.worst, -1.0)
        for i, layer in enumerate(self.network.layers[:-1]):
            for quantity, value in (*self._blocks(layer), *self._weights(layer)):
                now[i, QUANTITIES.index(quantity)] = value
        now[-1, 0] = abs(loss - expected) / max(abs(expected), TINY)
        now[np.isnan(now)] = np.inf
        return self.world.max_of_each(now)

    def _blocks(self, layer: Layer) -> Iterator[tuple[str, float]]:
        """Differences of the output and its gradient in the last micro-batch or FC pass."""
        last = self.executor.last_part(layer.name)
        layout = owned(self.network, layer, self.plan.configs[layer.name], last.samples)
        box = tuple(slice(*i) for i in layout.box(self.executor.rank))
        reordered = bool(self.executor.fc_passes) and last is self.executor.passes[0]
        for quantity in ("output", "gradient"):
            if quantity == "gradient" and layer.name not in self.network.trained:
                continue
            whole = None
            if self.serial is not None:
                whole = getattr(self.serial.watch, f"{quantity}s")[layer.name]
                if reordered:  # the serial run took the samples in the order of the FC passes
                    whole[self.order] = whole.copy()
            shape = tuple(int(extent) for extent in layout.shape)
            expected = self.world.bcast_array(whole, shape, self.plan.dtype)
            pairs = []
            if all(a.stop > a.start for a in box):
                kept = getattr(self.trained.watch, f"{quantity}s")
                pairs.append((kept[layer.name], expected[box]))
            yield quantity, difference(pairs, [expected])

    def _weights(self, layer: Layer) -> Iterator[tuple[str, float]]:
        """Differences of weights, their gradients, and running statistics."""
        p, x = self.executor.parameters.get(layer.name), self.network.input_shape(layer)
        if p is None:
            return
        rows = slice(p.start, p.stop)
        weight = (rows, slice(*p.columns)) if len(p.weight_shape) > 1 else (rows,)
        of_weights = [(layer.weight_shape(x), weight), (layer.bias_shape(x), (rows,))]
        of_statistics = [((2, x[0]), (slice(None), rows))]
        serial = {} if self.serial is None else dict(self.serial.weights(layer))
        for quantity, tensors in self.trained.weights(layer):
            if quantity == "weight_gradient" and not whole_gradient(self.plan, self.schedule,
                                                                    layer):
                continue
            boxes = of_statistics if quantity == "running_statistics" else of_weights
            expected, pairs = [], []
            for i, (part, (shape, box)) in enumerate(zip(tensors, boxes, strict=False)):
                whole = serial[quantity][i] if serial else None
                expected.append(self.world.bcast_array(whole, shape, self.plan.dtype))
                if part.size:
                    pairs.append((part, expected[-1][box]))
            yield quantity, difference(pairs, expected)
