"""Mixed precision: every strategy trains as one rank does, to one rounding of 16 bits per sum.

One rank computes each sum in float32 and rounds it once. Several ranks also round the partial sums
that they send, and the sum after each addition. A rounding changes a number by at most 2^-8 of it
in bfloat16, and 2^-11 in float16, whose loss scale keeps gradients above the range in which it has
fewer digits.
An output depends on one sum for each product before it, and a gradient on the sums of both passes,
so the norm of a difference is at most ROUNDING for each of these sums. This holds where rounding
cannot flip a kink, so the network is smooth.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.world import World, world
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    Pointwise,
    SiLU,
    SoftmaxCrossEntropy,
    Tanh,
)
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.runnable import require
from hpcpar.schedule.steps import Comm, Role
from hpcpar.train import verify
from hpcpar.train.verify import Verification, VerifyOptions, comparable
from tests.mpi.comparison import CHOOSERS
from tests.mpi.sharing import allgather
from tests.strategies import named

P = world().size
ROUNDING = 2.0**-8
ROUNDINGS = {"amp": ROUNDING, "amp-fp16": 2.0**-11}
#: Options beyond strategies, each with a strategy.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("data", {"synchronization": "sharded", "optimizer": "adamw"}),
    ("data", {"synchronization": "server"}), ("spatial", {"microbatches": 2, "recompute": 2}),
    ("channel", {"overlap": "none"}), ("filter", {"overlap": "gradient", "bucket_bytes": 1 << 12}),
]


def smooth() -> Network:
    """A LeNet without kinks."""
    net = Chain("smooth", (2, 12, 12))
    net.add(Conv2d, "conv1", out_channels=8, kernel=(3, 3), padding=(1, 1))
    net.add(Tanh, "tanh1")
    net.add(AvgPool2d, "pool1", kernel=(2, 2), stride=(2, 2))
    net.add(Conv2d, "conv2", out_channels=12, kernel=(3, 3), padding=(1, 1), bias=False)
    net.add(BatchNorm, "norm2")
    net.add(SiLU, "silu2")
    net.add(Flatten, "flat")
    net.add(Linear, "fc1", out_features=24)
    net.add(Pointwise, "formula", parameter=(24,), steps=(
        ("mul", "x0", "w"), ("erf", "t0"), ("softplus", "x0"), ("sub", "t2", "t1")))
    net.add(Tanh, "tanh3")
    net.add(Dropout, "drop", rate=0.5)
    net.add(Linear, "fc2", out_features=6)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def plan_of(network: Network, strategy: str, **options: Any) -> Plan:
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    batch = P * P if strategy.startswith("owt-") else 2 * P
    return Plan(spec, P, batch, strategy, configurations(network, strategy, P),
                **({"precision": "amp"} | plan_options(strategy, P, batch) | options))


def require_close(plan: Plan, network: Network, algorithm: str, ranks: World,
                  patch: pytest.MonkeyPatch, on: Backend | None = None) -> None:
    """Compare two iterations; the second one reads copies of updated weights."""
    patch.setattr(verify, "schedule_for",
                  lambda network, plan: lower(network, plan, CHOOSERS[algorithm]))
    check = Verification(ranks, network, comparable(network, plan, plan.precision),
                         on or backend("cpu"), VerifyOptions(steps=2, tolerance=1.0, rate=0.01))
    worst = check.run(lambda step, result: None).worst
    products = len(network.matmul_layers)
    for i, layer in enumerate(network.layers):
        before = sum(one in network.layers[:i + 1] for one in network.matmul_layers)
        for quantity, found in zip(verify.QUANTITIES, worst[i], strict=True):
            sums = before if quantity == "output" else 2 * products
            where = f"{plan.strategy}, {algorithm}: {quantity} of {layer}"
            assert found <= sums * ROUNDINGS[plan.precision], where


@pytest.mark.parametrize("precision", ROUNDINGS)
@pytest.mark.parametrize(("k", "strategy"), list(enumerate(named(P))))
def test_every_strategy_trains_as_one_rank(k: int, strategy: str, precision: str, ranks: World,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    network, algorithm = smooth(), list(CHOOSERS)[(k + P) % len(CHOOSERS)]
    plan = plan_of(network, strategy, precision=precision)
    if plan.fc_passes > 1 and plan.formats.scaled:
        with pytest.raises(InputError, match="amp-fp16 decides once per iteration"):
            require(network, plan)
        return
    require_close(plan, network, algorithm, ranks, monkeypatch)


@pytest.mark.parametrize("precision", ROUNDINGS)
@pytest.mark.parametrize(("strategy", "options"), OPTIONS, ids=str)
def test_every_option_trains_as_one_rank(strategy: str, options: dict[str, Any], precision: str,
                                         ranks: World, monkeypatch: pytest.MonkeyPatch) -> None:
    network = smooth()
    plan = plan_of(network, strategy, precision=precision, **options)
    require_close(plan, network, "mpi", ranks, monkeypatch)


@pytest.mark.parametrize("strategy", ["spatial", "channel"])
def test_pytorchs_convolutions_train_as_one_rank(strategy: str, ranks: World,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    network, on = smooth(), backend("cpu", kernels="torch")
    require_close(plan_of(network, strategy), network, "mpi", ranks, monkeypatch, on)


@pytest.mark.parametrize("precision", ROUNDINGS)
@pytest.mark.parametrize("strategy", ["data", "spatial", "channel"])
def test_runs_and_replicas_are_bitwise_equal(strategy: str, precision: str,
                                             communicator: Any) -> None:
    network, rng = smooth(), np.random.default_rng(3)
    plan = plan_of(network, strategy, precision=precision)
    schedule = lower(network, plan, CHOOSERS["ring"])
    images = rng.standard_normal((plan.batch, *network.image_shape)).astype(np.float32)
    labels = rng.integers(0, network.classes, plan.batch)
    runs = []
    for _ in range(2):
        executor = Executor(network, plan, schedule, communicator, communicator.backend, 7)
        box = tuple(slice(*i) for i in executor.image_box)
        losses = [executor.iterate(images[(executor.image_rows, *box)], labels, i, 0.1, 0.9, 0.01)
                  for i in range(3)]
        runs.append((losses, {name: (p.start, p.stop, *p.columns, zlib.crc32(p.flat))
                              for name, p in executor.parameters.items() if p.flat.size}))
    assert runs[0] == runs[1] and losses[2] < losses[0]
    everyone = allgather(communicator.world, runs[0][1])
    for name in executor.parameters:
        parts = {bits[name] for bits in everyone if name in bits}
        assert len(parts) == len({part[:-1] for part in parts}), f"replicas of {name} differ"


@pytest.mark.skipif(P == 1, reason="one rank sends nothing")
def test_messages_of_activations_have_half_the_bytes(communicator: Any) -> None:
    """As priced: the trace of each step is compared with the schedule of float32."""
    from dataclasses import replace

    network, rng = smooth(), np.random.default_rng(3)
    sent = []
    for precision in ("fp32", "amp"):
        plan = replace(plan_of(network, "spatial"), precision=precision)
        schedule = lower(network, plan, CHOOSERS["ring"])
        executor = Executor(network, plan, schedule, communicator, communicator.backend, 7)
        box = tuple(slice(*i) for i in executor.image_box)
        images = rng.standard_normal((plan.batch, *network.image_shape)).astype(np.float32)
        communicator.trace.clear()
        executor.iterate(images[(executor.image_rows, *box)], np.zeros(plan.batch, int), 0, 0.1,
                         0.9, 0.0)
        sent.append(dict(communicator.trace.sent_bytes))
    kinds = set()
    for step in schedule.steps:
        if isinstance(step, Comm) and sent[0].get(step.index):
            half = step.tensor.role in (Role.INPUT, Role.OUTPUT)
            assert sent[1][step.index] == sent[0][step.index] / (2 if half else 1)
            kinds.add(half)
    assert kinds == {True, False}
