"""Networks of public zoos, trained by `hpcpar.torch` as by PyTorch on one process.

Run in the environment of `bench/zoo.py`: ``mpiexec -n 2 python bench/zoo_equality.py --last 100``.
Takes the networks of its list in the order of their names' hashes, with small images where they
take them, and without random numbers; ``--first`` goes on after a job that ended. Each trains three
steps in float64 under `auto` and under a random plan: losses, gradients and the state at the end
are compared with PyTorch's. Steps are short (`RATE`, `bound`), so that rounding does not grow from
one to the next; "rounding" says that PyTorch alone differs by a tenth as much or more from itself
where images change by 1e-15. Prints a line for each network, and a count.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import hpcpar.torch  # noqa: E402
from bench.torch_equality import Pair, plan_of  # noqa: E402
from bench.zoo import ZOOS, own_shape, prepared  # noqa: E402
from bench.zoo_list import Candidate, digest  # noqa: E402
from hpcpar.comm.world import world  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.plan.plan import Plan  # noqa: E402
from hpcpar.torch.model import ParallelModule  # noqa: E402
from tests.mpi.sharing import Patient  # noqa: E402

STEPS, BATCH, RATE = 3, 4, 1e-4


def hard_sigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """PyTorch's own gradient of it has a sixth in float32, off by 3e-8, for float64 too."""
    return functional.relu6(input + 3) / 6


functional.hardsigmoid = hard_sigmoid


def bound(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Bound gradients by 1: a first step must not throw a network to infinity."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    nn.utils.clip_grad_value_([p for p in parameters if not p.is_complex()], 1.0)


class ZooPair(Pair):
    """A network under a plan, and the same network by itself; the loss is a mean of squares."""

    def __init__(self, model: ParallelModule, make: Callable[[], nn.Module],
                 shape: tuple[int, ...]) -> None:
        self.model, self.plan = model, model.plan
        trained: list[nn.Module] = [model]
        self.module: nn.Module = nn.Identity()
        if world().rank == 0:
            self.module = make().train()
            trained.append(self.module)
        self.optimizers = tuple(torch.optim.SGD(each.parameters(), RATE, momentum=0.9)
                                for each in trained)
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(bound)
        draw = torch.Generator().manual_seed(1)
        self.images = torch.randn(STEPS, BATCH, *shape, dtype=torch.float64, generator=draw)
        self.labels = [[torch.randn(BATCH, *model.sample_shape(i), dtype=torch.float64,
                                    generator=draw) for i in range(len(model._traced.outputs))]
                       for _ in range(STEPS)]

    def _trained(self, images: Tensor, labels: Sequence[Tensor]) -> float:
        model = self.model

        def loss(y: Any, own: Sequence[Tensor]) -> Tensor:
            return sum((hpcpar.torch.mean((a - b).square(), model)
                        for a, b in zip(tree_leaves(y), own, strict=True)), torch.zeros(()))

        if model.engine.training.forward_end is None:
            return float(model.step(images, labels, loss))
        value = loss(model(images), [model.local(each, i) for i, each in enumerate(labels)])
        model.backward(value)
        return float(value.detach())

    def loss(self, y: Any, labels: Sequence[Tensor], total: object, mean: object) -> Tensor:
        """PyTorch's."""
        return sum(((a - b).square().mean() for a, b in zip(tree_leaves(y), labels, strict=True)),
                   torch.zeros(()))

    def _rows(self, labels: Any, rows: slice) -> Any:
        return [each[rows] for each in labels]

    def rounding(self, module: nn.Module, other: nn.Module) -> float:
        """The largest relative difference of gradients between PyTorch and PyTorch with images
        changed by 1e-15.
        """
        draw, found = torch.Generator().manual_seed(2), 0.0
        optimizers = [torch.optim.SGD(each.parameters(), RATE, momentum=0.9)
                      for each in (module, other)]
        for images, labels in zip(self.images, self.labels, strict=True):
            noise = 1e-15 * torch.randn(images.shape, dtype=images.dtype, generator=draw)
            self.loss(module(images), labels, None, None).backward()
            self.loss(other(images * (1 + noise)), labels, None, None).backward()
            pairs = [(p.grad, q.grad) for p, q in zip(module.parameters(), other.parameters(),
                                                      strict=True)
                     if p.grad is not None and q.grad is not None and p.numel()]
            largest = max(float(a.abs().max()) for a, _ in pairs)
            found = max(found, *(float((a - b).abs().max()) / max(
                float(a.abs().max()), 1e-3 * largest) for a, b in pairs))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return found


def small_fits(candidate: Candidate) -> bool:
    """Whether the network takes small images; rank 0's answer on all."""
    return bool(world().comm.bcast(world().rank == 0 and _small_fits(candidate)))


def _small_fits(candidate: Candidate) -> bool:
    try:
        prepared(candidate)(torch.zeros(BATCH, *candidate.small, dtype=torch.float64))
    except RuntimeError:
        return False
    return True


def faults(candidate: Candidate, seed: int) -> list[str]:
    """The first differences under each plan."""
    small = small_fits(candidate)
    make = partial(prepared, candidate, small)
    shape = candidate.small if small else candidate.shape or own_shape(make())
    model = hpcpar.torch.parallelize(make(), shape, BATCH, "auto", batch_norm="sync")
    trace, plans = model._traced, {"auto": model.plan, "random": plan_of(
        model.engine.network, BATCH, world().size, seed)}
    del model

    def pair(plan: Plan) -> ZooPair:
        gc.collect()  # of large networks, one model at a time fits into the memory
        return ZooPair(ParallelModule(make(), trace, plan, world(), 0), make, shape)

    found = [f"{name}: {fault}" for name, plan in plans.items() for fault in pair(plan).faults()]
    if any(world().comm.allgather(bool(found))):
        compared = pair(plans["auto"])
        alone = world().rank == 0
        of_pytorch = world().comm.bcast(compared.rounding(make(), make()) if alone else 0.0)
        off = [float(number) for number in re.findall(r"off by (\S+)", " ".join(found))]
        if len(off) == len(found) and max(off, default=0.0) <= 10 * of_pytorch:
            return [f"rounding: {max(off, default=0.0):.1e}, PyTorch's {of_pytorch:.1e}"]
    return found


def result(candidate: Candidate, seed: int) -> tuple[str, str]:
    """One of equal, rounding, unequal, refused; and the reason; the same on all ranks."""
    try:
        found = [each for ours in world().comm.allgather(faults(candidate, seed)) for each in ours]
    except InputError as err:
        return "refused", str(err)
    except Exception as err:  # it may be one rank's alone
        print(f"{candidate.zoo}/{candidate.name} failed: {type(err).__name__}: {err}", flush=True)
        world().abort(f"{candidate.zoo}/{candidate.name}: {err}")
    if found and all(each.startswith("rounding") for each in found):
        return "rounding", found[0]
    return ("unequal", "; ".join(found[:4])) if found else ("equal", "")


def main() -> int:
    """Prints the results; returns 1 where one is unequal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="place of the first network")
    parser.add_argument("--last", type=int, default=100, help="place after the last network")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    world().comm = Patient(world().comm)
    listed = sorted((c for zoo in ZOOS.values() for c in zoo()),
                    key=lambda c: digest(f"{c.zoo}/{c.name}"))
    count: collections.Counter[str] = collections.Counter()
    for seed in range(args.first, min(args.last, len(listed))):
        candidate, begin = listed[seed], time.perf_counter()
        kind, why = result(candidate, seed)
        count[kind] += 1
        if world().rank == 0:
            print(f"{seed} {candidate.zoo}/{candidate.name} {time.perf_counter() - begin:.0f} s "
                  f"{kind} {' '.join(why.split())[:400]}", flush=True)
    if world().rank == 0:
        print(f"{world().size} ranks:", ", ".join(f"{n} {kind}" for kind, n in count.items()))
    return int(count["unequal"] > 0)


if __name__ == "__main__":
    sys.exit(main())
