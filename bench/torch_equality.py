"""Random PyTorch modules trained by `hpcpar.torch` under random plans equal PyTorch on one process.

Run: ``python bench/torch_equality.py --modules 100 --seed 0 --ranks 1,2,3,4,6,8``. On every number
of ranks each module gets a random plan, a loss (cross-entropy, Dice + cross-entropy, or mean
squared error) and an optimizer of torch.optim (SGD, AdamW or RMSprop), and trains five steps in
float64: the loss and every gradient after each step, and the module's state at the end, are
compared with plain PyTorch's. Prints a count for each number of ranks, and every failure with its
seed and reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import hpcpar.torch  # noqa: E402
from bench.random_modules import random_module  # noqa: E402
from bench.random_networks import main  # noqa: E402
from hpcpar.comm.world import world  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.network.layers import BatchNorm, Outputs  # noqa: E402
from hpcpar.network.read.torch_module import traced  # noqa: E402
from hpcpar.plan.boxes import block  # noqa: E402
from hpcpar.plan.config import Config  # noqa: E402
from hpcpar.plan.plan import NetworkSpec, Plan, Synchronization  # noqa: E402
from hpcpar.torch import tensors  # noqa: E402
from tests.mpi.plans import random_plan, staged_plan  # noqa: E402

STEPS, TOLERANCE = 5, 1e-9
#: A loss of a model's outputs and labels, and how it sums and averages values.
Loss = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], Tensor]


def cross_entropy(y: Tensor, labels: Tensor, total: Callable[[Tensor], Tensor],
                  mean: Callable[[Tensor], Tensor]) -> Tensor:
    return mean(functional.cross_entropy(y, labels, reduction="none"))


def dice_ce(y: Tensor, labels: Tensor, total: Callable[[Tensor], Tensor],
            mean: Callable[[Tensor], Tensor]) -> Tensor:
    """1 - the mean soft Dice over the classes, plus cross-entropy."""
    axes = [0, *range(2, y.dim())]
    p, truth = y.softmax(1), functional.one_hot(labels, y.shape[1]).movedim(-1, 1).to(y.dtype)
    both, either = total((p * truth).sum(axes)), total((p + truth).sum(axes))
    return 1 - (2 * both / (either + 1)).mean() + cross_entropy(y, labels, total, mean)


def squares(y: Tensor, labels: Tensor, total: Callable[[Tensor], Tensor],
            mean: Callable[[Tensor], Tensor]) -> Tensor:
    return mean((y - labels).square())


LOSSES: tuple[Loss, ...] = (cross_entropy, dice_ce, squares)
#: Their eps are so large that gradients which are zero but for rounding stay small.
OPTIMIZERS: tuple[Callable[[list[nn.Parameter]], torch.optim.Optimizer], ...] = (
    lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.9, weight_decay=0.01),
    lambda ps: torch.optim.AdamW(ps, 0.001, eps=1e-3),
    lambda ps: torch.optim.RMSprop(ps, 0.001, eps=1e-3, momentum=0.5),
)


def plan_of(network: Network, batch: int, ranks: int, seed: int) -> Plan:
    """A random plan, one in five a pipeline; statistics of the whole batch, as the module's. Layers
    with the same weights are cut alike.
    """
    rng = np.random.default_rng([seed, ranks, 41])
    staged = seed % 5 == 0 and ranks > 1 and not network.tied
    plan = (staged_plan if staged else random_plan)(network, batch, ranks, rng)
    configs = {layer.name: whole(plan.configs[layer.weights_of or layer.name],
                                 network.input_shape(layer)) for layer in network.layers}
    normalizes = any(isinstance(layer, BatchNorm) for layer in network.layers)
    return replace(plan, configs=configs, batch_norm="sync",
                   synchronization=Synchronization.ALLREDUCE, network=NetworkSpec.of(network),
                   machine=files.load("local"),
                   microbatches=1 if normalizes else plan.microbatches)


def whole(config: Config, x: tuple[int, ...]) -> Config:
    """A configuration whose reduction has no more parts than input channels."""
    if not x or config.k <= x[0]:
        return config
    return replace(config, k=1, replicas=config.replicas * config.k)


class Pair:
    """A module under a plan, and the same module by itself."""

    def __init__(self, seed: int) -> None:
        ranks = world()
        module, shape, batch = random_module(seed)
        network = traced(module, shape, Outputs).network
        self.plan = plan_of(network, batch, ranks.size, seed)
        self.model = hpcpar.torch.parallelize(module, shape, batch, self.plan)
        self.module = module.train()
        kind = seed % len(LOSSES)
        self.loss, make = LOSSES[kind], OPTIMIZERS[seed // 3 % len(OPTIMIZERS)]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            make(list(self.model.parameters())), make(list(module.parameters())))
        torch.manual_seed(seed)
        self.images = torch.randn(STEPS, batch, *shape, dtype=torch.float64)
        with torch.no_grad():
            y = module.eval()(self.images[0])
        module.train()
        self.labels = torch.randint(0, y.shape[1], (STEPS, batch, *y.shape[2:]))
        if self.loss is squares:
            self.labels = torch.randn(STEPS, *y.shape, dtype=torch.float64)

    def faults(self) -> Iterator[str]:
        """The differences, step by step. Rank 0 trains the module by itself."""
        alone = world().rank == 0
        for i, (images, labels) in enumerate(zip(self.images, self.labels, strict=True)):
            mine = self._trained(images, labels)
            theirs = self._alone(images, labels) if alone else 0.0
            yield from self._losses(i, mine, world().comm.bcast(theirs))
            yield from self._gradients(i)
            for optimizer in self.optimizers[:1 + alone]:
                optimizer.step()
                optimizer.zero_grad()
        state = self.model.state_dict()
        for name, value in of_rank_0(self.module.state_dict().items() if alone else ()):
            yield from differs(name, _reals(state[name]), _reals(value), 1e-3)

    def _losses(self, step: int, mine: float, theirs: float) -> Iterator[str]:
        if not abs(mine - theirs) <= TOLERANCE * max(abs(theirs), 1e-3):
            yield f"step {step}: loss {mine} instead of {theirs}"

    def _trained(self, images: Tensor, labels: Tensor) -> float:
        model = self.model

        def loss(y: Tensor, own: Tensor) -> Tensor:
            return self.loss(y, own, lambda v: hpcpar.torch.sum(v, model),
                             lambda v: hpcpar.torch.mean(v, model))

        if model.engine.training.forward_end is None:
            return float(model.step(images, labels, loss))
        value = loss(model(images), model.local(labels))
        model.backward(value)
        return float(value.detach())

    def _alone(self, images: Tensor, labels: Tensor) -> float:
        """The loss of the batch; where the plan takes micro-batches one by one, their mean."""
        parts = 1 if self.model.engine.training.forward_end is not None else self.plan.microbatches
        total = 0.0
        for part in range(parts):
            rows = slice(*block(self.plan.batch, parts, part))
            share = (rows.stop - rows.start) / self.plan.batch
            value = share * self.loss(self.module(images[rows]), self._rows(labels, rows),
                                      lambda v: v, lambda v: v.mean())
            value.backward()
            total += float(value.detach())
        return total

    def _rows(self, labels: Any, rows: slice) -> Any:
        """Some samples of the labels."""
        return labels[rows]

    def _gradients(self, step: int) -> Iterator[str]:
        """This rank's parts of the gradients."""
        executor, ours = self.model.engine.executor, dict(self.model.named_parameters())
        known = [(name, p.grad) for name, p in self.module.named_parameters()
                 if p.grad is not None] if world().rank == 0 else []
        most = max((largest(_reals(grad)) for _, grad in known if grad.numel()), default=0.0)
        most = world().comm.bcast(most)
        for name, theirs in of_rank_0(known):
            grad = ours[name].grad
            if grad is None:
                yield f"step {step}: {name} has no gradient"
                continue
            part = tensors.own_part(executor, self.model.tensor_places[name], theirs)
            yield from differs(f"step {step}: gradient of {name}", grad,
                               torch.from_numpy(part.copy()).reshape(grad.shape), 1e-3 * most)


def of_rank_0(known: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Rank 0's tensors, one after the other, on all ranks."""
    comm = world().comm
    for pair in known:
        comm.bcast(pair)
        yield pair
    if world().rank == 0:
        comm.bcast(None)
        return
    while (pair := comm.bcast(None)) is not None:
        yield pair


def _reals(value: Tensor) -> Tensor:
    return torch.view_as_real(value) if value.is_complex() else value.double()


def largest(values: Tensor) -> float:
    """The largest absolute value, without a copy."""
    low, high = map(float, values.aminmax())
    return max(-low, high)


def differs(what: str, got: Tensor, wanted: Tensor, least: float) -> Iterator[str]:
    if got.shape != wanted.shape:
        yield f"{what} has shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    elif wanted.numel():
        off = largest(got - wanted) / max(largest(wanted), least, 1e-30)
        if not off <= TOLERANCE:
            yield f"{what} is off by {off:.1e}"


def check(seed: int) -> list[str]:
    """Faults of a module under a random plan, the same on all ranks; none if all is equal."""
    try:
        found = list(Pair(seed).faults())[:3]
    except InputError as err:
        found = [f"refused: {err}"]
    return [f"rank {rank}: {fault}" for rank, faults in enumerate(world().comm.allgather(found))
            for fault in faults]


def _checks() -> Callable[[int], list[str]]:
    torch.set_num_threads(1)
    return check


if __name__ == "__main__":
    sys.exit(main("modules", 100, _checks))
