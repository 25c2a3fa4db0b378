"""Training by the GPU's backend equals serial training, on a pretended GPU (tests/pretended): its
kernels, its streams, and the ways of its messages.

Work is done as late as the streams' order allows, so a wait that is missing shows here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.calibrate import compute_probe
from hpcpar.calibrate.compute_probe import compute_samples
from hpcpar.calibrate.link_probe import Steps
from hpcpar.comm import cards
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World, world
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.machine import files
from hpcpar.plan.boxes import local, whole_box
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Overlap, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.flight import Flight
from hpcpar.runtime.nonfinite import NonfiniteDetector
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Compute, Kind, Phase
from tests import cuda_cpu, outside
from tests.kernel_support import fetch
from tests.mpi.comparison import CHOOSERS, SEED, check, facts, rates
from tests.mpi.few_ranks import few_ranks
from tests.strategies import named, one_pass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretended"))

P = world().size


@pytest.fixture(scope="module")
def gpu() -> Any:
    if cuda_cpu.missing():
        pytest.skip(cuda_cpu.missing())
    return backend("gpu", local_rank=world().local_rank)


@pytest.fixture(params=list(Transport))
def gpu_communicator(request: pytest.FixtureRequest, gpu: Any) -> Communicator:
    return Communicator(world(), gpu, request.param)


def plan_of(name: str, strategy: str, overlap: str, precision: str = "fp64") -> Any:
    network = facts(name).network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    return make_plan(spec, strategy, P, facts(name).batch, precision=precision, overlap=overlap,
                     network=network)


@pytest.mark.parametrize("collectives", ["own", "mpi"])
def test_every_strategy_trains_on_gpus(collectives: str, gpu_communicator: Communicator) -> None:
    by_number = ("ring, 3 segments", "halving", "tree") if collectives == "own" else ("mpi",)
    # many ranks share few cores: half of the strategies there
    for number, strategy in enumerate(one_pass(P)[:: 2 if P > 4 else 1]):
        overlap = list(Overlap)[number % len(Overlap)]
        check("lenet5", plan_of("lenet5", strategy, overlap), by_number[number % len(by_number)],
              gpu_communicator, f"{strategy} on a GPU", steps=2)


def test_a_loss_over_pixels_trains_on_gpus(gpu_communicator: Communicator) -> None:
    for strategy in ("data", "spatial", "filter"):
        check("dice", plan_of("dice", strategy, "full"), "ring", gpu_communicator,
              f"{strategy} on a GPU", steps=2)


@few_ranks
@pytest.mark.parametrize(("network", "options"), [
    ("resnet", {}), ("resnet", {"batch_norm": "local"}), ("resnet", {"recompute": 2}),
    ("lenet5", {}), ("resnet@8", {"microbatches": 2})])
def test_joined_steps_train_as_single_ones(network: str, options: dict[str, Any],
                                           gpu: Any) -> None:
    """A watched program runs its steps one by one, and every strategy trains as PyTorch does."""
    given, communicator = facts(network), Communicator(world(), gpu)
    for strategy in one_pass(P):
        spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
        plan = make_plan(spec, strategy, P, given.batch, precision="fp64", network=given.network,
                         **options)
        single = check(network, plan, "ring", communicator, f"{strategy}, {options}", steps=2)
        executor = Executor(given.network, plan, lower(given.network, plan, CHOOSERS["ring"]),
                            communicator, gpu, SEED)
        assert executor.training is not None
        steps = executor.training.schedule.steps
        joined = any(steps[i].phase is Phase.FORWARD for i in executor.training.joint)
        assert joined or strategy != "data"
        pixels = local(executor.image_box, whole_box(given.network.image_shape))
        losses = [executor.iterate(given.images[i][(executor.image_rows, *pixels)],
                                   given.targets[i], i, *rates(given.network, plan))[0]
                  for i in range(2)]
        assert losses == pytest.approx(single.losses, rel=1e-11)
        for name, p in executor.parameters.items():
            np.testing.assert_allclose(fetch(p.flat), single.weights[name], rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(P > 2, reason="more ranks add nothing here")
@pytest.mark.parametrize("optimizer", ["adamw", "nesterov"])
def test_updates_by_array_operations(optimizer: str, gpu_communicator: Communicator) -> None:
    with outside.registered():
        plan = replace(plan_of("lenet5", "data", "full"), optimizer=optimizer,
                       synchronization="sharded")
        check("lenet5", plan, "ring", gpu_communicator, f"{optimizer} on a GPU", steps=2)


@pytest.mark.skipif(P not in (2, 3, 4), reason="stages and passes on a few ranks are enough")
def test_several_passes_train_on_gpus(gpu_communicator: Communicator) -> None:
    for strategy in sorted(set(named(P)) - set(one_pass(P))):
        name = f"lenet5@{P * P}"
        check(name, plan_of(name, strategy, "full"), "ring", gpu_communicator,
              f"{strategy} on a GPU", steps=2)


@pytest.mark.skipif(P == 1, reason="a rank alone shares nothing")
def test_ranks_that_share_a_card_cannot_use_nccl() -> None:
    with pytest.raises(InputError, match="ranks 0 and 1 share GPU"):
        Communicator(world(), backend("gpu"), Transport.NCCL)


def test_open_mpi_gets_no_collectives_on_device_memory(gpu: Any,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world(), "library", "Open MPI v5.0.11")
    communicator = Communicator(world(), gpu, Transport.DIRECT)
    network, plan = facts("lenet5").network, plan_of("lenet5", "data", "full")
    communicator.agree(lower(network, plan, CHOOSERS["ring"]))
    if P > 1:
        with pytest.raises(InputError, match="Open MPI's nonblocking collectives crash"):
            communicator.agree(lower(network, plan, CHOOSERS["mpi"]))


def test_links_are_measured_as_runs_use_them(gpu_communicator: Communicator) -> None:
    """A calibration's buffers are the device's: staged, or handed to MPI."""
    steps = Steps(gpu_communicator)
    for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER) if P > 1 else ():
        transfer = steps.bind(kind, "ring", Config(n=P), "n", 4096)
        staged = gpu_communicator.transport is Transport.STAGED
        assert transfer.buffers.staged is staged
        assert (type(transfer.buffers.wire) is np.ndarray) is staged
        gpu_communicator.start(transfer)
        gpu_communicator.wait(transfer)


def _losses(gpu_or_cpu: Any, strategy: str, transport: Transport) -> list[float]:
    """Losses of three iterations in float32."""
    given = facts("lenet5")
    network, plan = given.network, plan_of("lenet5", strategy, "full", "fp32")
    executor = Executor(network, plan, lower(network, plan, CHOOSERS["ring"]),
                        Communicator(world(), gpu_or_cpu, transport), gpu_or_cpu, 5)
    pixels = local(executor.image_box, whole_box(network.image_shape))
    return [executor.iterate(given.images[i][(executor.image_rows, *pixels)], given.targets[i], i,
                             0.01, 0.9, 0.0)[0] for i in range(3)]


@pytest.mark.parametrize("strategy", ["data", "filter", "spatial"])
def test_float32_trains_with_cudnn(strategy: str, gpu: Any) -> None:
    """Its convolutions are cuDNN's there, with the halos' uneven pads."""
    assert gpu.convolutions.startswith("cudnn")
    expected = _losses(backend("cpu"), strategy, Transport.STAGED)
    assert _losses(gpu, strategy, Transport.NCCL) == pytest.approx(expected, rel=1e-4)
    assert gpu.unsupported_convolutions == []


def test_the_memory_limit_leaves_room_for_kernels(gpu: Any) -> None:
    """A 32nd of the card's for cuDNN's workspace, and a limit for im2col."""
    free_bytes, total_bytes = gpu.xp.cuda.runtime.memGetInfo()
    assert gpu.memory_bytes == free_bytes - total_bytes // 32 - 256 * 2**20


def test_different_gpus_are_reported_on_every_rank(ranks: World) -> None:
    versions = {"gpu": "A100" if ranks.rank else "H100", "math": "fp32"}
    expected = ["ranks differ in gpu: rank 0 has H100, rank 1 has A100; replicas may round "
                "differently"]
    assert cards.differences(ranks, versions) == expected * (ranks.size > 1)
    assert cards.differences(ranks, {}) == []


def _executor(gpu: Any, name: str, transport: Transport) -> Executor:
    network, plan = facts(name).network, plan_of(name, "data", "full", "fp32")
    executor = Executor(network, plan, lower(network, plan, CHOOSERS["ring"]),
                        Communicator(world(), gpu, transport), gpu, 5)
    NonfiniteDetector(executor)
    return executor


def _begin(executor: Executor, name: str, i: int, noted: bool = True) -> Flight:
    images = executor.backend.upload(facts(name).images[i][executor.image_rows])
    return executor.begin(images, facts(name).targets[i], i, 0.01, 0.9, 0.0, noted=noted)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("name", ["lenet5", "vgg"])
def test_the_host_runs_ahead(name: str, noted: bool, gpu: Any) -> None:
    """In a steady iteration the host never asks how far the device is. Reading an older result
    leaves the newer iteration's work undone.
    """
    from cupy.cuda import runtime

    executor = _executor(gpu, name, Transport.NCCL)
    assert executor.communicator.host_runs_ahead
    _begin(executor, name, 0).result()
    older = _begin(executor, name, 1, noted)
    images = gpu.upload(facts(name).images[2][executor.image_rows])
    before = runtime.host_waits
    newer = executor.begin(images, facts(name).targets[2], 2, 0.01, 0.9, 0.0, noted=noted)
    assert runtime.host_waits == before
    older.result()
    if P == 1:  # several ranks' devices work while they wait for each other
        assert not newer._berth._mark.point.reached
        older.times()
        assert not newer._berth._mark.point.reached
    newer.result()


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_a_calibration_measures_steps_that_wait_in_the_devices_queue(
        strategy: str, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device holds until the host has submitted the next steps, and the host waits for it only
    before that. Host time is a number of its own.
    """
    from cupy.cuda import runtime

    holds: list[tuple[float, int]] = []
    hold = gpu.hold

    def noting(seconds: float) -> None:
        holds.append((seconds, runtime.host_waits))
        hold(seconds)

    monkeypatch.setattr(gpu, "hold", noting)
    monkeypatch.setattr(compute_probe, "_QUEUED_STEPS", 4)
    monkeypatch.setattr(compute_probe, "VISIT_S", 1e-9)
    plan = replace(plan_of("lenet5", strategy, "none"), machine=files.load("local"))
    found = compute_samples(world(), plan, gpu, ())
    assert found is not None and found.submit_s > 0 and (found.seconds > 0).any()
    steps = [s for s in schedule_for(plan.network.build(), plan).steps if isinstance(s, Compute)]
    assert len(holds) >= len(steps) // 4 > 2
    assert all(seconds == pytest.approx(6 * found.submit_s) for seconds, _ in holds)
    waits = [now - before for (_, before), (_, now) in pairwise(holds)]
    assert set(waits) == {1}


@pytest.mark.parametrize("transport", [Transport.STAGED, Transport.NCCL])
def test_running_ahead_changes_no_bit(transport: Transport, gpu: Any) -> None:
    """Labels, losses and requests are each iteration's own, and events are used again."""
    prompt, ahead = (_executor(gpu, "lenet5", transport) for _ in range(2))
    expected, flights, found = [], [], []
    for i in range(3):
        for executor in (prompt, ahead):
            executor.ask = 10 * i + 1
        expected.append(_begin(prompt, "lenet5", i).result())
        flights.append(_begin(ahead, "lenet5", i))
        if i:
            found.append(flights[-2].result())
    found.append(flights[-1].result())
    assert [r[:3] for r in found] == [r[:3] for r in expected]
    assert [r.asked for r in found] == [P * (10 * i + 1) for i in range(3)]
    ended_s = [r.ended_s for r in found]
    assert ended_s == sorted(ended_s)
    for name, p in prompt.parameters.items():
        assert (fetch(p.flat) == fetch(ahead.parameters[name].flat)).all()


def test_a_third_iteration_waits_for_the_first(gpu: Any) -> None:
    """It uses the same host memory."""
    executor = _executor(gpu, "lenet5", Transport.NCCL)
    flights = [_begin(executor, "lenet5", 0) for _ in range(3)]
    losses = [flight.result().loss for flight in flights]
    assert losses == _same_batch_losses(_executor(gpu, "lenet5", Transport.NCCL))


def _same_batch_losses(executor: Executor) -> list[float]:
    return [_begin(executor, "lenet5", 0).result().loss for _ in range(3)]


@pytest.mark.skipif(P > 1, reason="waits for sums lie between the updates of several ranks")
def test_all_updates_are_one_launch(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has its part of the time."""
    executor = _executor(gpu, "vgg", Transport.STAGED)
    _begin(executor, "vgg", 0).result()
    launched, launch = [], type(gpu.launch).__call__
    monkeypatch.setattr(type(gpu.launch), "__call__", lambda self, name, *args, **more: (
        launched.append(name), launch(self, name, *args, **more)))
    flight = _begin(executor, "vgg", 1)
    flight.result()
    assert [name for name in launched if "update" in name] == ["sgd_updates"]
    steps, times = executor.training.schedule.steps, flight.times()
    updates = [s for s in steps if s.phase is Phase.UPDATE]
    assert len(updates) > 4
    spent_s = np.array([times.seconds[s.index] for s in updates])
    sizes = np.array([executor.parameters[s.layer].flat.size for s in updates])
    np.testing.assert_allclose(spent_s / spent_s.sum(), sizes / sizes.sum())
    begins_s = [times.started_s[s.index] for s in updates]
    assert begins_s == sorted(begins_s)


class Stuck(Exception):
    """In place of the end of the job."""


def _ended(monkeypatch: pytest.MonkeyPatch, communicator: Communicator) -> str:
    """The message with which a wait for the device ends the job."""
    said: list[str] = []

    def abort(message: str) -> None:
        said.append(message)
        raise Stuck

    monkeypatch.setattr(communicator.world, "abort", abort)
    monkeypatch.setattr(communicator.backend, "reached", lambda mark: False)
    with pytest.raises(Stuck):
        communicator.complete()
    return said[0]


def test_a_stuck_device_ends_the_job(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCPAR_STALL_S", "0.2")
    assert "the device has not finished its work for 0.2 s" in _ended(
        monkeypatch, Communicator(world(), gpu))


def test_a_fault_of_nccl_ends_the_job(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import nccl

    communicator = Communicator(world(), gpu, Transport.NCCL)

    def fails(self: Any) -> None:
        raise nccl.NcclError("unhandled system error")

    monkeypatch.setattr(nccl.NcclCommunicator, "check_async_error", fails)
    assert _ended(monkeypatch, communicator) == "NCCL reports: unhandled system error"
