"""Training under a plan beside the same training on one rank, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data.augment import Augmentation
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Dropout, Layer
from hpcpar.plan.config import Config
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch, on_host
from hpcpar.runtime.optimizer import SGD
from hpcpar.schedule.pipeline_order import switch
from hpcpar.schedule.steps import Schedule
from hpcpar.train.job import require_ranks
from hpcpar.train.verify_batches import Data

#: Compared tensors of a layer; weights and biases count as one tensor.
QUANTITIES = ("output", "gradient", "weight_gradient", "weight", "running_statistics")
#: Largest relative difference that may come from the order of sums, by type.
TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
#: Under Adam, which divides by what may be hardly more than rounding.
ADAM_TOLERANCES = {"float64": 1e-4, "float32": 1e-1}
#: For tensors that are zero everywhere.
TINY = 1e-300


def whole_gradient(plan: Plan, schedule: Schedule, layer: Layer) -> bool:
    """True where a rank ends with the whole sum of a layer's gradient."""
    is_summed = any(layer.name in step.covers for step in schedule.comms)
    return plan.synchronisation is Synchronisation.ALLREDUCE or not is_summed


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification; `data` is a file, or empty for random numbers."""

    data: str = ""
    steps: int = 3
    seed: int = 0
    sgd: SGD = field(default_factory=SGD)
    augment: tuple[Augmentation, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The largest difference that was found, relative to the largest magnitude of the tensor in
    which it was.
    """

    value: float
    layer: str
    quantity: str


@dataclass
class Result:
    """The result of a verification.

    Attributes
    ----------
    layers : list of str
    worst : numpy.ndarray
        [layers, `QUANTITIES`] largest relative difference over ranks and steps; -1 where there is
        nothing to compare.
    losses, serial_losses : list of float
    """

    layers: list[str]
    worst: np.ndarray
    losses: list[float] = field(default_factory=list)
    serial_losses: list[float] = field(default_factory=list)

    @property
    def largest(self) -> Difference:
        i, j = np.unravel_index(int(self.worst.argmax()), self.worst.shape)
        return Difference(float(self.worst[i, j]), self.layers[int(i)], QUANTITIES[int(j)])

    def check(self, tolerance: float) -> None:
        """Raise a RunError on every rank where a difference is larger."""
        most = self.largest
        if not most.value <= tolerance:
            raise on_all_ranks(RunError(
                f"the plan does not train as one rank does: the {most.quantity.replace('_', ' ')} "
                f"of layer '{most.layer}' differs by {most.value:.2e} of its largest value, more "
                f"than {tolerance:g}; please report it with the plan file"
            ))


def comparable(network: Network, plan: Plan, dtype: str) -> Plan:
    """The plan as it is verified: with statistics of the whole batch, as those of a rank's part
    differ from a serial run's by design.
    """
    if plan.fc_passes > 1 and any(isinstance(layer, Dropout)
                              for layer in network.layers[:switch(network)]):
        raise InputError(f"the plan has {plan.fc_passes} FC passes and the network dropout before "
                         "them, which falls on other samples in a serial run; verify it with the "
                         "strategy owt")
    return replace(plan, dtype=dtype, batch_norm="sync")


def serial_plan(plan: Plan) -> Plan:
    """The same training on one rank."""
    configs = {name: Config() for name in plan.configs}
    return replace(plan, ranks=1, strategy="serial", configs=configs, switch="each",
                   synchronisation=Synchronisation.ALLREDUCE)


class Verification:
    """One rank of a training that is compared, after every step, with the same training on one rank
    (rank 0's, beside its own).

    Parameters
    ----------
    plan : Plan
        As `comparable` gives it.

    Raises
    ------
    InputError
        On every rank alike: what is wrong with files, sizes or options.
    """

    def __init__(self, world: World, network: Network, plan: Plan, backend: Backend,
                 options: VerifyOptions) -> None:
        require_ranks(world, plan)
        self.world, self.network, self.plan, self.options = world, network, plan, options
        self.schedule = world.agree(lambda: schedule_for(network, plan))
        self.executor = Executor(network, plan, self.schedule, Communicator(world, backend),
                                 backend, options.seed)
        batch = int(plan.batch)
        fc_passes = self.executor.fc_passes
        #: Samples in the order in which the serial run must take them for its FC passes to have the
        #: same ones.
        self.order = np.arange(batch)
        if fc_passes:
            self.order = np.concatenate([p.place(np.arange(p.samples)) for p in fc_passes])
        self.data = world.agree(lambda: Data(self.executor, options.data, options.seed,
                                             np.arange(batch), options.augment))
        self.serial = self._serial(backend) if world.rank == 0 else None
        self.watch = Watch(self.executor, self.executor.training)
        self.serial_watch = None
        if self.serial is not None:
            self.serial_watch = Watch(self.serial[0], self.serial[0].training)
        self.result = Result([layer.name for layer in network.layers],
                             np.full((len(network.layers), len(QUANTITIES)), -1.0))

    def _serial(self, backend: Backend) -> tuple[Executor, Data]:
        alone, plan = self.world.alone(), serial_plan(self.plan)
        schedule = schedule_for(self.network, plan)
        executor = Executor(self.network, plan, schedule, Communicator(alone, backend), backend,
                            self.options.seed)
        return executor, Data(executor, self.options.data, self.options.seed, self.order,
                              self.options.augment)

    def run(self, tell: Callable[[int, Result], None]) -> Result:
        """All steps; `tell` hears of each.

        Raises
        ------
        RunError
            On every rank: a rank sent other messages than the schedule has, or the serial run has
            blown up.
        """
        for step in range(self.options.steps):
            self.executor.communicator.trace.clear()
            loss = self._iterate(self.executor, self.data, step)
            self.world.agree(self._check_trace)
            expected = self.world.bcast(self._iterate(*self.serial, step) if self.serial else 0.0)
            if not math.isfinite(expected):
                raise on_all_ranks(RunError(f"the serial run's loss is {expected} at step {step}: "
                                            "try a smaller --rate, or other data"))
            self.result.losses.append(loss)
            self.result.serial_losses.append(expected)
            self._compare(loss, expected)
            tell(step + 1, self.result)
        return self.result

    def _check_trace(self) -> None:
        trace.check(self.executor.communicator.trace, self.schedule, self.world.rank)

    def _iterate(self, executor: Executor, data: Data, step: int) -> float:
        sgd = self.options.sgd
        return executor.iterate(*data.batch(step), step, sgd.rate, sgd.momentum, sgd.decay)[0]

    # -- comparing ---------------------------------------------------------------------------------
    def _compare(self, loss: float, expected: float) -> None:
        """Everything after a step, layer by layer, so that no rank holds more than one whole tensor
        of another.
        """
        now = np.full_like(self.result.worst, -1.0)
        for i, layer in enumerate(self.network.layers[:-1]):
            for quantity, value in (*self._blocks(layer),
                                    *(self._weights(layer) if layer.has_weights else ())):
                now[i, QUANTITIES.index(quantity)] = value
        now[-1, 0] = abs(loss - expected) / max(abs(expected), TINY)
        now[np.isnan(now)] = np.inf
        self.result.worst = np.maximum(self.result.worst, self.world.most_of_each(now))

    def _blocks(self, layer: Layer) -> Iterator[tuple[str, float]]:
        """Output and its gradient of the last micro-batch or FC pass."""
        here = self.executor.last_part(layer.name)
        layout = owned(self.network, layer, self.plan.configs[layer.name], here.samples)
        piece = tuple(slice(*i) for i in layout.box(self.executor.rank))
        mixed = bool(self.executor.fc_passes) and here is self.executor.passes[0]
        for quantity in ("output", "gradient"):
            if quantity == "gradient" and layer.name not in self.network.trained:
                continue
            whole = None
            if self.serial_watch is not None:
                whole = getattr(self.serial_watch, f"{quantity}s")[layer.name]
                if mixed:  # the serial run took the samples in the order of the FC passes
                    whole[self.order] = whole.copy()
            shape = tuple(int(extent) for extent in layout.shape)
            expected = self.world.bcast_array(whole, shape, self.plan.dtype)
            some = all(a.stop > a.start for a in piece)
            found = getattr(self.watch, f"{quantity}s")[layer.name] if some else expected[:0]
            yield quantity, difference([(found, expected[piece] if some else found)], [expected])

    def _weights(self, layer: Layer) -> Iterator[tuple[str, float]]:
        """Weights, their gradients, and running statistics."""
        p, x = self.executor.parameters[layer.name], self.network.input_shape(layer)
        shapes = [shape for shape in (layer.weight_shape(x), layer.bias_shape(x)) if shape]
        rows = slice(p.start, p.stop)
        places = [(rows, slice(*p.columns)) if len(shapes[0]) > 1 else (rows,), (rows,)]
        theirs = self.serial[0].parameters[layer.name] if self.serial is not None else None
        pairs = [("weight", "flat")]
        if whole_gradient(self.plan, self.schedule, layer):
            pairs.append(("weight_gradient", "grad"))
        for quantity, name in pairs:
            parts = (None,) * 2 if theirs is None else theirs.split(getattr(theirs, name))
            expected = []
            for part, shape in zip(parts, shapes, strict=False):
                whole = None if part is None else on_host(self.executor.backend, part)
                expected.append(self.world.bcast_array(whole, shape, self.plan.dtype))
            found = [on_host(self.executor.backend, a) for a in p.split(getattr(p, name))
                     if a is not None]
            some = p.flat.size > 0
            pieces = [(f, e[place]) for f, e, place in zip(found, expected, places,
                                                           strict=False)] if some else []
            yield quantity, difference(pieces, expected)
        if p.buffers is not None:
            running = None if theirs is None else on_host(self.executor.backend, theirs.buffers)
            whole = self.world.bcast_array(running, (2, shapes[0][0]), self.plan.dtype)
            yield "running_statistics", difference([(on_host(self.executor.backend, p.buffers),
                                                     whole[:, rows])], [whole])


def difference(pieces: list[tuple[np.ndarray, np.ndarray]], whole: list[np.ndarray]) -> float:
    """Largest difference of found from expected pieces, relative to the largest magnitude of the
    whole tensors that they are of.
    """
    size = max(max(float(np.abs(w).max(initial=0.0)) for w in whole), TINY)
    off = 0.0
    for found, expected in pieces:
        off = max(off, float(np.abs(found - expected).max(initial=0.0))
                  if found.shape == expected.shape else math.inf)
    return off / size
