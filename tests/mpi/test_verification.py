"""Verification: right plans pass in all formats, by tolerances that follow from a perturbed
serial run, and wrong ones do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.comm.transfer import Transfer
from hpcpar.comm.world import World, world
from hpcpar.errors import RunError
from hpcpar.kernels import backend
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Kind, Phase
from hpcpar.train import verify
from hpcpar.train.verify import Result, Verification, VerifyOptions, comparable
from tests.mpi.networks import by_name

P = world().size
pytestmark = pytest.mark.skipif(P > 3, reason="more ranks add nothing here")
several = pytest.mark.skipif(P == 1, reason="one rank sends nothing")


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms need no machine to choose them by."""
    monkeypatch.setattr(verify, "schedule_for",
                        lambda network, plan: lower(network, plan, lambda step: ("ring", 1)))


def verification(ranks: World, name: str, strategy: str, precision: str,
                 tolerance: float | None = None, **options: Any) -> Verification:
    network: Network = by_name(name)[0]
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, P, 2 * P, strategy, configurations(network, strategy, P),
                **plan_options(strategy, P, 2 * P), **options)
    return Verification(ranks, network, comparable(network, plan, precision), backend("cpu"),
                        VerifyOptions(steps=2, tolerance=tolerance))


def silent(step: int, result: Result) -> None:
    """A listener that ignores all messages."""


@pytest.mark.parametrize(("name", "strategy", "precision", "options"), [
    ("resnet", "spatial", "fp32", {}), ("inception", "filter", "fp32", {}),
    ("resnet", "channel", "fp32", {"optimizer": "adam"}),
    ("resnet", "channel", "fp64", {"optimizer": "adam"}),
    ("resnet", "spatial", "amp", {}), ("lenet5", "channel", "amp", {}),
    ("norms", "data", "amp", {}),
    ("norms", "data", "fp64", {}), ("norms", "spatial", "fp32", {"microbatches": 2})])
def test_correct_plans_pass(name: str, strategy: str, precision: str, options: dict[str, Any],
                            ranks: World) -> None:
    check = verification(ranks, name, strategy, precision, **options)
    result = check.run(silent)
    result.check()
    if "optimizer" not in options:  # Adam makes noise large
        outputs = result.tolerance[:, 0]
        eps = float(np.finfo(PRECISIONS[precision].dtype).eps)
        assert np.median(outputs) < (0.3 if precision == "amp" else 1e4 * eps)


def drop(executor: Executor, layer: str, phase: Phase) -> None:
    """Rank 0 sends zeros in place of a layer's halo."""
    assert executor.training is not None
    transfer: Transfer = next(t for t in executor.training.transfers.values()
                              if t.step.layer == layer and t.step.phase is phase
                              and t.step.kind is Kind.HALO)
    buffers, pack = transfer.buffers, transfer.buffers.pack

    def nothing() -> None:
        pack()
        buffers.wire[...] = 0

    buffers.pack = nothing  # type: ignore[method-assign]


def forget(executor: Executor, layer: str) -> None:
    """Rank 0 adds nothing to a layer's gradient."""
    op = executor.part(layer, 0).ops[layer]
    honest = op.backward_weight

    def nothing() -> None:
        honest()
        op.parameters.grad[...] = 0

    op.backward_weight = nothing  # type: ignore[method-assign]


def scale(executor: Executor, layer: str) -> None:
    """Rank 0 begins with a weight that is 1% too large."""
    executor.parameters[layer].flat[...] *= 1.01


WRONG: dict[str, tuple[str, str, Any]] = {
    "halo, ResNet": ("resnet", "spatial", lambda e: drop(e, "stage1.0.conv2", Phase.FORWARD)),
    "halo": ("lenet5", "spatial", lambda e: drop(e, "conv2", Phase.FORWARD)),
    "halo of gradients, ResNet":
        ("resnet", "spatial", lambda e: drop(e, "stage2.1.conv2", Phase.BACKWARD)),
    "halo of gradients": ("lenet5", "spatial", lambda e: drop(e, "conv2", Phase.BACKWARD)),
    "gradient, ResNet": ("resnet", "data", lambda e: forget(e, "stage2.1.conv2")),
    "gradient": ("lenet5", "data", lambda e: forget(e, "conv2")),
    "weight, ResNet": ("resnet", "data", lambda e: scale(e, "stage2.1.conv2")),
    "weight": ("lenet5", "data", lambda e: scale(e, "conv2")),
}


@several
@pytest.mark.parametrize("what", WRONG)
def test_wrong_plans_fail_in_float32(what: str, ranks: World) -> None:
    name, strategy, spoil = WRONG[what]
    check = verification(ranks, name, strategy, "fp32")
    if ranks.rank == 0:
        spoil(check.executor)
    result = check.run(silent)
    # by far: not by luck
    assert result.largest.value > 20 * result.largest.tolerance
    with pytest.raises(RunError, match=r"does not train as one rank does: the .* of layer"):
        result.check()


@several
@pytest.mark.parametrize("what", ["halo", "gradient"])
def test_wrong_plans_fail_in_mixed_precision(what: str, ranks: World) -> None:
    name, strategy, spoil = WRONG[what]
    check = verification(ranks, name, strategy, "amp")
    if ranks.rank == 0:
        spoil(check.executor)
    with pytest.raises(RunError, match=r"does not train as one rank does: the .* of layer"):
        check.run(silent).check()


@several
def test_a_given_tolerance_needs_no_perturbed_run(ranks: World) -> None:
    check = verification(ranks, "resnet", "spatial", "fp32", tolerance=0.0)
    assert check.perturbed is None
    result = check.run(silent)
    with pytest.raises(RunError, match="more than 0"):
        result.check()
    result.tolerance[...] = 1e-3
    result.check()
