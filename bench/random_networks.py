"""Random networks written in PyTorch, loaded by `from_torch`, equal PyTorch under random plans.

Run: ``python bench/random_networks.py --networks 200 --seed 0 --ranks 1,2,3,4,6,8``. On every
number of ranks each network gets a random plan and trains one step in float64: the outputs, the
loss and the gradients of all weights are compared with PyTorch's forward and backward pass of the
module itself. Prints a count for each number of ranks, and every failure with its seed and reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from hpcpar.comm.communicator import Communicator  # noqa: E402
from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.network.layers import (  # noqa: E402
    BatchNorm,
    ConvTranspose,
    Layer,
    Loss,
    MeanSquaredError,
    SoftmaxCrossEntropy,
    Whole,
)
from hpcpar.plan.boxes import items, local  # noqa: E402
from hpcpar.plan.layout import owned  # noqa: E402
from hpcpar.plan.plan import Plan  # noqa: E402
from hpcpar.runtime.executor import Executor  # noqa: E402
from hpcpar.runtime.observe import Watch  # noqa: E402
from hpcpar.schedule.lower import lower  # noqa: E402
from hpcpar.schedule.steps import Comm  # noqa: E402
from tests.collectives import BY_KIND  # noqa: E402
from tests.mpi.plans import random_plan  # noqa: E402

TOLERANCE = 1e-9
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """A network and one step of its module in PyTorch.

    Attributes
    ----------
    weights, gradients : dict of list of ndarray
        Weight and bias of each layer, in this project's shapes.
    """

    network: Network
    images: Floats
    labels: NDArray[Any]
    weights: dict[str, list[Floats]]
    output: Floats
    loss: float
    gradients: dict[str, list[Floats]]


def truth(seed: int) -> Truth:
    """The random network of a seed, and what PyTorch computes.

    Raises
    ------
    InputError
        The module cannot be loaded.
    """
    from bench.random_modules import random_module

    return truth_of(*random_module(seed))


def truth_of(module: Any, shape: tuple[int, ...], batch: int,
             loss: type[Loss] = SoftmaxCrossEntropy, network: Network | None = None) -> Truth:
    """The network of a float64 module, or `network`, and what PyTorch computes.

    Raises
    ------
    InputError
        The module cannot be loaded, or no layer has one of its parameters.
    """
    import torch
    from torch.nn import functional

    from hpcpar.network import from_torch

    network = network or from_torch(module, shape, loss)
    x = torch.randn(batch, *shape, dtype=torch.float64)
    y = module.train()(x)
    if loss is MeanSquaredError:
        labels = torch.randn_like(y)
        value = functional.mse_loss(y, labels)
    else:
        labels = torch.randint(0, y.shape[1], (batch, *y.shape[2:]))
        value = functional.cross_entropy(y, labels)
    value.backward()
    parameters = dict(module.named_buffers()) | dict(module.named_parameters())
    weights: dict[str, list[Floats]] = {}
    gradients: dict[str, list[Floats]] = {}
    for layer in network.weighted:
        found = [parameters.pop(name) for name in network.origins[layer.name]]
        values = [p.detach().numpy() for p in found]
        slopes = [(torch.zeros_like(p) if p.grad is None else p.grad).numpy() for p in found]
        if isinstance(layer, Whole):  # one vector of all
            values, slopes = ([np.concatenate([a.ravel() for a in arrays])] if arrays else []
                              for arrays in (values, slopes))
        weights[layer.name] = [ours(network, layer, i, v).copy() for i, v in enumerate(values)]
        gradients[layer.name] = [ours(network, layer, i, v) for i, v in enumerate(slopes)]
    lost = [name for name, p in parameters.items() if p.grad is not None]
    if lost:
        raise InputError(f"parameters of the module belong to no layer: {', '.join(lost[:3])}")
    output = y.detach().numpy().reshape(batch, *network.shapes[network.layers[-1].name])
    truth_shape = output.shape if loss is MeanSquaredError else (batch, *output.shape[2:])
    return Truth(network, x.numpy().reshape(batch, *network.image_shape),
                 labels.numpy().reshape(truth_shape), weights, output, value.item(), gradients)


def ours(network: Network, layer: Layer, which: int, value: Floats) -> Floats:
    """A weight (0) or bias (1) of PyTorch in the shape that checkpoints have."""
    x = network.input_shape(layer)
    shape = layer.bias_shape(x) if which else layer.weight_shape(x)
    if isinstance(layer, ConvTranspose) and which == 0:
        inputs, per_group, *kernel = value.shape
        groups = layer.groups
        value = value.reshape(groups, inputs // groups, per_group, *kernel).swapaxes(1, 2)
    return value.reshape(shape)


def plan_of(network: Network, batch: int, ranks: int, seed: int) -> Plan:
    """A random plan; statistics of the whole batch, as the module's."""
    plan = random_plan(network, batch, ranks, np.random.default_rng([seed, ranks, 25]))
    normalizes = any(isinstance(layer, BatchNorm) for layer in network.layers)
    return replace(plan, batch_norm="sync", microbatches=1 if normalizes else plan.microbatches)


def algorithm(step: Comm) -> tuple[str, int]:
    """Rings, for every collective."""
    return BY_KIND[step.pattern.kinds[0]][0], 1


class Step:
    """One step of a network under a plan, on this rank."""

    def __init__(self, given: Truth, plan: Plan, communicator: Communicator) -> None:
        self.given, self.plan, self.network = given, plan, given.network
        schedule = lower(self.network, plan, algorithm)
        self.executor = Executor(self.network, plan, schedule, communicator, backend("cpu"), 0)
        assert self.executor.training is not None
        self.watch = Watch(self.executor, self.executor.training)
        self._set_weights()

    def _pieces(self, name: str) -> Iterator[tuple[int, tuple[slice, ...], Floats]]:
        """Weight and bias that this rank holds: which, their place in the whole, the array."""
        p = self.executor.parameters[name]
        if p.flat.size:
            for which, array in enumerate(p.split(p.flat)):
                if array is not None:
                    columns = (slice(*p.columns),) if not which and len(p.weight_shape) > 1 else ()
                    yield which, (slice(p.start, p.stop), *columns), array

    def _set_weights(self) -> None:
        for name, values in self.given.weights.items():
            if name in self.executor.parameters:
                for which, place, array in self._pieces(name):
                    array[...] = values[which][place]

    def faults(self) -> list[str]:
        """Run the step; what differs from PyTorch by more than the tolerance."""
        given, executor = self.given, self.executor
        image = local(executor.image_box, tuple((0, n) for n in self.network.image_shape))
        truth_box = tuple(slice(*i) for i in executor.truth_box)
        pixels: Any = (executor.image_rows, *image)
        labels = (slice(None), *truth_box)
        loss, _ = executor.iterate(given.images[pixels], given.labels[labels], 0, 1.0, 0.9, 0.0)
        found = [*self._output(), *self._gradients()]
        if not abs(loss - given.loss) <= TOLERANCE * abs(given.loss):
            found.append(f"loss {loss} instead of {given.loss}")
        return found

    def _output(self) -> Iterator[str]:
        last = self.network.by_name[self.network.layers[-1].inputs[0]]
        here = self.executor.part(last.name, max(self.plan.microbatches, 1) - 1)
        box = owned(self.network, last, self.plan.configs[last.name], here.samples).box(
            self.executor.rank)
        if items(box):
            place: Any = (here.place(np.arange(*box[0])), *(slice(*i) for i in box[1:]))
            yield from self._differs("output", self.watch.outputs[last.name],
                                     self.given.output[place], np.abs(self.given.output).max())

    def _gradients(self) -> Iterator[str]:
        """Gradients, which the first update of rate 1 subtracted from the weights.

        Shifts that a normalization undoes have no gradient: only its layer's others have a scale.
        """
        largest = max(np.abs(g).max() for gs in self.given.gradients.values() for g in gs)
        for name, gradients in self.given.gradients.items():
            if name in self.executor.parameters:
                scale = max(1e-3 * largest, *(np.abs(g).max() for g in gradients))
                for which, place, array in self._pieces(name):
                    change = self.given.weights[name][which][place] - array
                    yield from self._differs(f"gradient {which} of {name}", change,
                                             gradients[which][place], scale)

    def _differs(self, what: str, got: Floats, wanted: Floats, scale: float) -> Iterator[str]:
        off = float(np.abs(got - wanted).max(initial=0.0)) / max(float(scale), 1e-30)
        if not off <= TOLERANCE:
            yield f"{what} is off by {off:.1e}"


def check(seed: int, communicator: Communicator) -> list[str]:
    """Faults of a network under a random plan, the same on all ranks; none if all is equal."""
    return check_truth(lambda: truth(seed), seed, communicator)


def check_truth(make: Callable[[], Truth], seed: int, communicator: Communicator) -> list[str]:
    """Faults of the network that rank 0 makes, under the random plan of a seed."""
    ranks: World = communicator.world
    given: Truth | str | None = None
    if ranks.rank == 0:
        try:
            given = make()
        except InputError as err:
            given = f"not loaded: {err}"
    given = ranks.comm.bcast(given)
    if isinstance(given, str):
        return [given]
    assert given is not None
    plan = plan_of(given.network, len(given.images), ranks.size, seed)
    found = Step(given, plan, communicator).faults()
    return [f"rank {rank}: {fault}" for rank, faults in enumerate(ranks.comm.allgather(found[:3]))
            for fault in faults]


def work(what: str, seeds: range, check_seed: Callable[[int], list[str]]) -> int:
    """All networks or modules on the ranks of this job; rank 0 prints."""
    failed = 0
    for seed in seeds:
        faults = check_seed(seed)
        failed += bool(faults)
        if faults and world().rank == 0:
            print(f"  seed {seed}: {'; '.join(faults[:3])}", flush=True)
    if world().rank == 0:
        print(f"{len(seeds) - failed} of {len(seeds)} random {what} equal PyTorch on "
              f"{world().size} rank{'s' * (world().size > 1)}", flush=True)
    return int(failed > 0)


def main(what: str, count: int, checks: Callable[[], Callable[[int], list[str]]]) -> int:
    """The command of a file that checks `what`, in a job for each number of ranks.

    `checks` makes the check of a seed: its faults, the same on all ranks.
    """
    import __main__

    parser = argparse.ArgumentParser(description=__main__.__doc__)
    parser.add_argument(f"--{what}", type=int, default=count, help="how many", dest="count")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--ranks", default="1,2,3,4,6,8", help="numbers of ranks")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from tests.mpi.sharing import Patient

        warnings.filterwarnings("ignore", "Using padding='same'")
        world().comm = Patient(world().comm)
        return work(what, range(args.seed, args.seed + args.count), checks())
    status = 0
    for ranks in args.ranks.split(","):
        command = ["mpiexec", "-n", ranks, sys.executable, sys.argv[0], "--worker",
                   f"--{what}", str(args.count), "--seed", str(args.seed)]
        status |= subprocess.run(command, check=False).returncode
    return int(status > 0)


def _checks() -> Callable[[int], list[str]]:
    communicator = Communicator(world(), backend("cpu"))
    return lambda seed: check(seed, communicator)


if __name__ == "__main__":
    sys.exit(main("networks", 200, _checks))
