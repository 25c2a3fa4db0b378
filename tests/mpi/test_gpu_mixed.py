"""Mixed precision on a pretended GPU (tests/pretended): it keeps the CPU's bounds."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hpcpar.calibrate import calibrate
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World, world
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.machine.model import Device
from hpcpar.plan.boxes import local, whole_box
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.fusion import Fusion
from hpcpar.runtime.replay import WARM_UP
from hpcpar.schedule.lower import lower
from hpcpar.train import verify
from tests import cuda_cpu
from tests.kernel_support import fetch
from tests.mpi import test_gpu_graphs, test_mixed
from tests.mpi.comparison import CHOOSERS, facts
from tests.mpi.few_ranks import few_ranks
from tests.mpi.test_calibrate import brief  # noqa: F401
from tests.mpi.test_mixed import ROUNDING, require_close, smooth

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretended"))

P = world().size
pytestmark = few_ranks
STRATEGIES = ("data", "spatial", "filter", "channel")


@pytest.fixture(scope="module")
def gpu() -> Any:
    if cuda_cpu.missing():
        pytest.skip(cuda_cpu.missing())
    return backend("gpu", local_rank=world().local_rank)


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_train_as_one_rank(strategy: str, transport: Transport, gpu: Any, ranks: World,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    network = smooth()
    monkeypatch.setattr(verify, "Communicator", partial(Communicator, transport=transport))
    algorithm = "mpi" if transport is Transport.NCCL else "ring"
    require_close(test_mixed.plan_of(network, strategy), network, algorithm, ranks, monkeypatch,
                  gpu)


@pytest.mark.skipif(P == 1, reason="a rank alone adds no messages")
@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_mpi_does_not_add_bfloat16_on_the_device(strategy: str, gpu: Any, ranks: World,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    network = smooth()
    schedule = lower(network, test_mixed.plan_of(network, strategy), CHOOSERS["mpi"])
    monkeypatch.setattr(ranks, "library", "MPICH")
    Communicator(ranks, gpu, Transport.STAGED).agree(schedule)
    with pytest.raises(InputError, match="add bfloat16 numbers"):
        Communicator(ranks, gpu, Transport.DIRECT).agree(schedule)


def executor(name: str, on: Backend, **options: Any) -> Executor:
    network = facts(name).network
    plan = test_gpu_graphs.plan_of(name, "data", precision="amp")
    return Executor(network, plan, lower(network, plan, CHOOSERS["ring"]),
                    Communicator(world(), on), on, 5, **options)


def losses(of: Executor, name: str, rates: list[float]) -> list[float]:
    """Losses of iterations with these rates on one batch, without momentum."""
    given, found = facts(name), []
    pixels = local(of.image_box, whole_box(of.network.image_shape))
    images = of.backend.upload(given.images[0][(of.image_rows, *pixels)])
    for i, rate in enumerate(rates):
        found.append(of.begin(images, given.targets[0], i, rate, 0.0, 0.0, noted=False).result())
    return [flight.loss for flight in found]


@pytest.mark.parametrize("name", ["lenet5", "resnet"])
def test_devices_and_joined_steps_agree(name: str, gpu: Any,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Both devices round each result once; joint kernels round where single ones store."""
    rates = [0.01, 0.01]
    joined = losses(executor(name, gpu), name, rates)
    assert losses(executor(name, backend("cpu")), name, rates) == pytest.approx(
        joined, rel=4 * ROUNDING)
    monkeypatch.setattr(Fusion, "join", lambda self: None)
    assert losses(executor(name, gpu), name, rates) == pytest.approx(joined, rel=ROUNDING)


@pytest.mark.parametrize("graphs", [False, True])
def test_products_read_todays_weights(graphs: bool, gpu: Any) -> None:
    """Where a product and an activation are one launch, and in replays. The last iteration changes
    no weight.
    """
    trained = executor("lenet5", gpu, graphs=graphs)
    losses(trained, "lenet5", [0.1] * (WARM_UP + 3) + [0.0])
    assert trained.replays is None or trained.replays.replayed == 3
    copies = {name: p for name, p in trained.parameters.items() if p.copy is not None}
    assert len(copies) == 5
    for name, p in copies.items():
        expected = fetch(p.flat).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(fetch(p.copy), expected, name)


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize("name", ["lenet5", "vgg", "resnet"])
def test_graphs_have_the_same_bits(name: str, transport: Transport, gpu: Any) -> None:
    plan = test_gpu_graphs.plan_of(name, "spatial" if name == "lenet5" else "data",
                                   precision="amp")
    replayed = test_gpu_graphs.require_same_bits(gpu, name, plan, transport)
    assert replayed.replays is not None and replayed.replays.refused == {}


@pytest.mark.parametrize("name", ["dice", "unet"])
def test_graphs_around_refused_steps_have_the_same_bits(name: str, gpu: Any) -> None:
    """A capture that is refused takes back which weights it copied."""
    plan = test_gpu_graphs.plan_of(name, "data", precision="amp")
    replayed = test_gpu_graphs.require_same_bits(gpu, name, plan, Transport.NCCL)
    assert replayed.replays is not None and replayed.replays.refused


@pytest.mark.skipif(P > 2, reason="more ranks add nothing here")
@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.usefixtures("brief")
def test_a_machine_prices_bfloat16_as_convolutions_compute(math: str, gpu: Any,
                                                           ranks: World) -> None:
    """By a rate of its own, or without cuDNN in TF32, which holds bfloat16 numbers exactly."""
    on = backend("gpu", math, local_rank=ranks.local_rank)

    def device() -> Device:
        return calibrate.Calibration(ranks, on, "m", lambda _: None).measure([]).device

    itself = device()
    assert itself.rates["bfloat16"] not in (0.0, itself.flops_per_s)
    on.bfloat16_kernels -= {"conv_forward"}
    on_copies = device()
    assert on_copies.rates == ({"bfloat16": on_copies.flops_per_s} if math == "tf32" else {})
