"""LeNet-5 on real digits: the loss curve of every kind of plan is the serial one."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network.builtin.small import lenet5
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import local
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategy import grid_sizes
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.mpi.comparison import CHOOSERS, fc_pass_rows
from tests.mpi.plans import random_plan
from tests.mpi.sharing import allgather, bcast

P = world().size
#: Many ranks share few cores.
STEPS = 50 if P <= 4 else 15
TOLERANCE = 1e-6
SEED = 3
#: A multiple of every P * P on which one weird trick's fc_passes are tried.
BATCH = 16
RATES = (0.04, 0.9, 1e-4)
SPEC = NetworkSpec("lenet5", (1, 8, 8), 10)


def plans() -> dict[str, Plan]:
    """Every way to split LeNet-5 on this number of ranks."""

    def made(strategy: str, **options: Any) -> Plan:
        return make_plan(SPEC, strategy, P, BATCH, **{"precision": "fp64", **options})

    out = {"micro-batches": made("data", microbatches=3), "data": made("data")}
    if P == 1:
        return out
    out |= {name: made(name) for name in ("filter", "spatial", "owt", "channel")}
    out |= {f"{name}:{a}x{b}": made(f"{name}:{a}x{b}") for a, b in _squarest()
            for name in ("grid", "grid-fc", "domain", "ds")}
    if BATCH % (P * P) == 0:  # its fc_passes give another curve
        out["owt-c"] = made("owt-c")
    out["sharded"] = made("data", synchronization="sharded")
    out["gpipe"] = made(f"pipeline:{P}x1", microbatches=5)
    out["1f1b"] = made(f"pipeline:{P}x1", microbatches=8, order="1f1b", overlap="none")
    out |= {f"1f1b, {a}x{b}": made(f"pipeline:{a}x{b}", microbatches=4, order="1f1b")
            for a, b in _squarest()}
    out["any configurations"] = replace(random_plan(network(), BATCH, P,
                                                    np.random.default_rng([P, 8])),
                                        optimizer="momentum")
    return out


def _squarest() -> list[tuple[int, int]]:
    """The squarest grid, if there is one."""
    return [ab for ab in grid_sizes(P) if min(ab) > 1][-1:]


def network() -> Network:
    return lenet5(SPEC.shape, SPEC.classes)


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Batches [STEPS, BATCH, ...] of scikit-learn's bundled digits, drawn by chance; rank 0 loads
    them.
    """
    if world().rank == 0:
        from sklearn.datasets import load_digits

        found = load_digits()
        places = np.random.default_rng(0).integers(0, len(found.target), (STEPS, BATCH))
        read = found.images[places][:, :, None] / 16 - 0.3, found.target[places]
    else:
        read = None
    images, labels = bcast(world(), read)
    return images, labels


@cache
def serial(fc_passes: int, switch: str) -> list[float]:
    """The losses of PyTorch in one process: one weird trick's fc_passes give others. Rank 0
    computes them.
    """
    losses = None
    if world().rank == 0:
        import torch

        from tests.reference import Reference

        torch.set_num_threads(1)
        reference = Reference(network(), SEED, fc_passes=fc_pass_rows(BATCH, fc_passes, switch, P)
                              if fc_passes > 1
                              else None)
        losses = [reference.iterate(x, y, i, *RATES)
                  for i, (x, y) in enumerate(zip(*digits(), strict=True))]
    return bcast(world(), losses)


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None,
                    reason="scikit-learn is not installed (extra 'digits')")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                    reason="PyTorch is not installed (extra 'oracle')")
@pytest.mark.parametrize("name", list(plans())[:: 1 if P <= 4 else 3])
def test_loss_curves_equal_one_rank(name: str, communicator: Communicator) -> None:
    plan, net = plans()[name], network()
    images, labels = digits()
    expected = serial(plan.fc_passes, plan.switch if plan.fc_passes > 1 else "each")
    executor = Executor(net, plan, lower(net, plan, CHOOSERS["ring"]), communicator, backend("cpu"),
                        SEED)
    pixels = local(executor.image_box, tuple((0, n) for n in net.image_shape))
    losses = [executor.iterate(images[i][(executor.image_rows, *pixels)], labels[i], i, *RATES)[0]
              for i in range(STEPS)]
    off = max(allgather(world(), float(np.abs(np.array(losses) - expected).max())))
    assert off <= TOLERANCE, f"{name}: off by {off:.1e} within {STEPS} steps"
    # FC passes update some weights several times per iteration, and learn more slowly here
    assert STEPS < 50 or plan.fc_passes > 1 or np.mean(expected[-5:]) < 0.5 * expected[
        0], f"nothing is learned: {expected}"
