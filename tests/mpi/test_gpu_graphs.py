"""Training by graphs has the bits of training step by step, on a pretended GPU.

Graphs begin in the third iteration. Rates, numbers of updates and dropout's keys change with every
iteration.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.boxes import local, whole_box
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.flight import FlightResult
from hpcpar.runtime.nonfinite import NonfiniteDetector
from hpcpar.runtime.ops.pointwise import ActivationOp
from hpcpar.runtime.replay import WARM_UP
from hpcpar.schedule.lower import lower
from tests import cuda_cpu, outside
from tests.kernel_support import fetch
from tests.mpi.comparison import CHOOSERS, facts
from tests.mpi.few_ranks import few_ranks
from tests.own_layers import SoftplusOp
from tests.strategies import named, one_pass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretended"))

P = world().size
pytestmark = few_ranks
STEPS = WARM_UP + 4


@pytest.fixture(scope="module")
def gpu() -> Any:
    if cuda_cpu.missing():
        pytest.skip(cuda_cpu.missing())
    return backend("gpu", local_rank=world().local_rank)


def plan_of(name: str, strategy: str, **options: Any) -> Plan:
    network = facts(name).network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    return make_plan(spec, strategy, P, facts(name).batch, network=network, **options)


def trained(gpu: Any, name: str, plan: Plan, transport: Transport, graphs: bool,
            chooser: str = "ring") -> tuple[Executor, list[FlightResult]]:
    """Some iterations, of which one has a smaller batch and one is noted."""
    given, network = facts(name), facts(name).network
    executor = Executor(network, plan, lower(network, plan, CHOOSERS[chooser]),
                        Communicator(world(), gpu, transport), gpu, 5, graphs=graphs)
    NonfiniteDetector(executor)
    flights, found = [], []
    pixels = local(executor.image_box, whole_box(network.image_shape))
    truth = (slice(None), *local(executor.truth_box, whole_box(network.truth_shape)))
    for i in range(STEPS):
        batch = i % len(given.images)
        images = gpu.upload(given.images[batch][(executor.image_rows, *pixels)])
        counted = (plan.batch, plan.batch / 2) if i == STEPS - 3 else None
        executor.communicator.trace.clear()
        flights.append(executor.begin(
            images, given.targets[batch][truth], i, 0.01 / (1 + i), 0.9, 0.01, counted,
            noted=i == STEPS - 2))
        trace.check(executor.communicator.trace, executor.training.schedule, world().rank)
        if i:
            found.append(flights[-2].result())
    return executor, [*found, flights[-1].result()]


def require_same_bits(gpu: Any, name: str, plan: Plan, transport: Transport,
                      chooser: str = "ring") -> Executor:
    """Train both ways; returns the executor with graphs."""
    plain, expected = trained(gpu, name, plan, transport, False, chooser)
    replayed, found = trained(gpu, name, plan, transport, True, chooser)
    assert [r[:3] for r in found] == [r[:3] for r in expected]
    for layer, p in plain.parameters.items():
        other = replayed.parameters[layer]
        for a, b in zip((p.flat, p.buffers, *p.state), (other.flat, other.buffers, *other.state),
                        strict=True):
            assert a is None or (fetch(a) == fetch(b)).all(), layer
    assert replayed.replays is not None and replayed.replays.replayed == STEPS - WARM_UP - 3
    return replayed


@pytest.mark.parametrize("transport", list(Transport))
def test_every_strategy_has_the_same_bits(transport: Transport, gpu: Any) -> None:
    for strategy in one_pass(P)[:: 2 if P > 2 else 1]:
        executor = require_same_bits(gpu, "lenet5", plan_of("lenet5", strategy, precision="fp32"),
                                     transport)
        assert executor.replays is not None and executor.replays.refused == {}


def test_pytorchs_convolutions_run_between_graphs(gpu: Any) -> None:
    """A graph would keep memory that PyTorch gives to others. The results equal NumPy's."""
    pytest.importorskip("torch")
    by_torch = backend("gpu", local_rank=world().local_rank, kernels="torch")
    for strategy in one_pass(P)[:: 4 if P > 2 else 2]:
        plan = plan_of("lenet5", strategy, precision="fp64")
        executor = require_same_bits(by_torch, "lenet5", plan, Transport.STAGED)
        assert executor.replays is not None
        assert "PyTorch's convolutions allocate memory" in executor.replays.cautions[0]
        _, found = trained(by_torch, "lenet5", plan, Transport.STAGED, False)
        _, expected = trained(NumpyBackend(), "lenet5", plan, Transport.STAGED, False)
        assert [r[:3] for r in found] == [pytest.approx(r[:3], rel=1e-9) for r in expected]


@pytest.mark.parametrize("transport", [Transport.STAGED, Transport.NCCL])
@pytest.mark.parametrize("name", ["vgg", "resnet", "inception"])
def test_networks_have_the_same_bits(name: str, transport: Transport, gpu: Any) -> None:
    """Dropout, batch normalization, several readers of a tensor."""
    executor = require_same_bits(gpu, name, plan_of(name, "data"), transport)
    assert executor.replays is not None and executor.replays.refused == {}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers_have_the_same_bits(optimizer: str, gpu: Any) -> None:
    executor = require_same_bits(gpu, "lenet5", plan_of("lenet5", "data", optimizer=optimizer),
                                 Transport.NCCL)
    assert executor.replays is not None and executor.replays.refused == {}


@pytest.mark.skipif(P not in (2, 3, 4), reason="stages and passes on a few ranks are enough")
def test_several_passes_have_the_same_bits(gpu: Any) -> None:
    for strategy in sorted(set(named(P)) - set(one_pass(P))):
        name = f"lenet5@{P * P}"
        require_same_bits(gpu, name, plan_of(name, strategy), Transport.NCCL)


@pytest.mark.parametrize("name", ["dice", "unet"])
def test_refused_steps_run_between_graphs(name: str, gpu: Any) -> None:
    """Counts of pixels by class wait for the device."""
    executor = require_same_bits(gpu, name, plan_of(name, "data"), Transport.NCCL)
    assert executor.replays is not None and executor.replays.graphs > 1
    assert all("is capturing" in reason for reason in executor.replays.refused.values())


@pytest.mark.skipif(P > 2, reason="more ranks add nothing here")
def test_operators_that_do_not_say_that_they_replay_run_between_graphs(
        gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's own operator, whose Python code may have a state."""
    assert not SoftplusOp.replays and ActivationOp.replays
    monkeypatch.setattr(ActivationOp, "replays", False)
    executor = require_same_bits(gpu, "lenet5", plan_of("lenet5", "data"), Transport.NCCL)
    assert executor.replays is not None and executor.replays.graphs > 1
    assert "does not say that it replays" in executor.replays.cautions[0]


def test_updates_that_compute_with_the_rate_run_step_by_step(gpu: Any) -> None:
    with outside.registered():
        plan = replace(plan_of("lenet5", "data"), optimizer="nesterov")
        executor = require_same_bits(gpu, "lenet5", plan, Transport.NCCL)
    assert executor.replays is not None and set(executor.replays.refused.values()) == {
        "NotReplayable: a captured iteration cannot use the value of rate and step"}


def test_a_non_finite_value_is_found_in_a_replay(gpu: Any) -> None:
    plan, network = plan_of("lenet5", "data"), facts("lenet5").network
    executor = Executor(network, plan, lower(network, plan, CHOOSERS["ring"]),
                        Communicator(world(), gpu, Transport.NCCL), gpu, 5, graphs=True)
    detector = NonfiniteDetector(executor)
    given = facts("lenet5")
    for i in range(WARM_UP + 2):
        images = given.images[0][executor.image_rows].copy()
        assert detector.first() is None
        if i == WARM_UP + 1:
            images[...] = np.nan
        executor.begin(gpu.upload(images), given.targets[0], i, 0.01, 0.9, 0.0,
                       noted=False).result()
    assert executor.replays is not None and executor.replays.replayed == 1
    assert detector.first() is not None
