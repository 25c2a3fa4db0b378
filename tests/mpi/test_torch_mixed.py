"""`hpcpar.torch` in mixed precision: every strategy trains as one rank, and as PyTorch's autocast.

The bound of the first is in test_mixed.py, and why the network is smooth; the tolerance of the
second is the difference between PyTorch's float32 and its autocast, as in test_mixed_torch.py.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from hpcpar.machine import files
from hpcpar.network.graph import Network
from hpcpar.network.layers import Outputs
from hpcpar.network.read.torch_module import traced
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.torch.model import ParallelModule
from hpcpar.torch.parallelize import parallelize
from hpcpar.torch.tensors import own_part
from tests.mpi.test_mixed import ROUNDING
from tests.strategies import named

P = world().size
SHAPE, BATCH, STEPS = (2, 12, 12), 8, 4


def smooth() -> nn.Module:
    """A LeNet without kinks."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.SiLU(), nn.Flatten(),
        nn.Linear(12 * 36, 24), nn.Tanh(), nn.Dropout(0.5), nn.Linear(24, 6))


def batches(shape: tuple[int, ...], classes: int, pixels: bool) -> list[tuple[Tensor, Tensor]]:
    seeded = torch.Generator().manual_seed(3)
    return [(torch.randn(BATCH, *shape, generator=seeded),
             torch.randint(0, classes, (BATCH, *shape[1:] * pixels), generator=seeded))
            for _ in range(STEPS)]


def plan_of(network: Network, strategy: str, ranks: int) -> Plan:
    options = plan_options(strategy, ranks, BATCH) | {"microbatches": 1}
    return Plan(NetworkSpec.of(network), ranks, BATCH, strategy,
                configurations(network, strategy, ranks), precision="amp",
                machine=files.load("local"), **options)


def off(found: Tensor, wanted: Tensor) -> float:
    """Relative difference of this rank's parts, in the norm over all ranks."""
    parts = np.array([float((found - wanted).norm()), float(wanted.norm())]) ** 2
    difference, whole = np.sqrt(world().sum_of_each(parts))
    return float(difference / max(whole, 1e-30))


@pytest.mark.parametrize("strategy", [s for s in named(P) if not s.startswith("owt-")])
def test_every_strategy_trains_as_one_rank(strategy: str, communicator: Communicator) -> None:
    """Two iterations; the second one reads copies of updated weights."""
    module = smooth()
    trace = traced(module, SHAPE, Outputs)
    model = parallelize(module, SHAPE, BATCH, plan_of(trace.network, strategy, P))
    alone = ParallelModule(module, trace, plan_of(trace.network, "data", 1), world().alone(), 0,
                           device=signature(parallelize).parameters["device"].default)
    products, whole = len(trace.network.matmul_layers), dict(alone.named_parameters())
    for images, labels in batches(SHAPE, 6, pixels=False)[:2]:
        outputs = []
        for each in model, alone:
            y = each(images)
            each.backward(hpcpar.torch.mean(functional.cross_entropy(
                y, each.local(labels), reduction="none"), each))
            outputs.append(hpcpar.torch.gather(y.detach(), each))
        assert off(*outputs) <= products * ROUNDING
        for name, p in model.named_parameters():
            place, wanted = model.tensor_places[name], whole[name].grad
            part = torch.from_numpy(own_part(model.engine.executor, place, wanted))
            assert p.dtype is p.grad.dtype is torch.float32
            assert off(p.grad.cpu(), part.reshape(p.shape)) <= 2 * products * ROUNDING, name
        for each in model, alone:
            torch.optim.SGD(each.parameters(), 0.05).step()
            each.zero_grad()


def lenet5() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10))


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom, self.up = self.block(2, 8), self.block(8, 16), self.block(16, 8)
        self.enlarge, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 3, 1)

    def block(self, channels: int, width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        low = self.enlarge(self.bottom(functional.max_pool2d(x, 2)))
        return self.last(self.up(torch.cat([x, low], 1)))


NETWORKS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "lenet5": (lenet5, (1, 28, 28), 10), "unet": (UNet, (2, 16, 16), 3)}


def trained(model: nn.Module, data: list[tuple[Tensor, Tensor]], mixed: bool
            ) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of a loop as users write it, and the state after it."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9), []
    parallel = isinstance(model, ParallelModule)
    kind = model.device.type if parallel else "cpu"
    for images, labels in data:
        with torch.autocast(kind, torch.bfloat16, enabled=mixed):
            y = model(images)
            assert y.dtype is (torch.bfloat16 if mixed else torch.float32)
            own = model.local(labels) if parallel else labels
            values = functional.cross_entropy(y, own, reduction="none")
            loss = hpcpar.torch.mean(values, model) if parallel else values.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses), {name: value.detach().cpu().float().clone()
                                  for name, value in model.state_dict().items()}


@pytest.mark.parametrize("strategy", ["data", "spatial"])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_autocast(name: str, strategy: str, communicator: Communicator) -> None:
    make, shape, classes = NETWORKS[name]
    torch.manual_seed(4)
    module, data = make(), batches(shape, classes, pixels=name == "unet")
    first = {key: value.clone() for key, value in module.state_dict().items()}
    model = parallelize(module, shape, BATCH, strategy, machine="dgx-a100", precision="amp")
    losses, state = trained(model, data, mixed=True)
    single, mixed = [], []
    for results, is_mixed in (single, False), (mixed, True):
        module.load_state_dict(first)
        results += trained(module, data, is_mixed)
    of_losses = (losses - mixed[0]).norm(), (single[0] - mixed[0]).norm()
    of_weights = [np.array([float((values[key] - wanted).norm() / wanted.norm())
                            for key, wanted in mixed[1].items() if wanted.norm()])
                  for values in (state, single[1])]
    assert of_losses[0] <= of_losses[1]
    assert np.square(of_weights[0]).mean() <= np.square(of_weights[1]).mean()


@pytest.fixture
def model() -> Any:
    return parallelize(smooth(), SHAPE, BATCH, "data", machine="dgx-a100", precision="amp")


def test_outputs_are_bfloat16_under_autocast_only(model: Any) -> None:
    """Both hold the same numbers, in training, in evaluation and in micro-batches."""
    images, labels = batches(SHAPE, 6, pixels=False)[0]
    types = []

    def loss(y: Tensor, own: Tensor) -> Tensor:
        types.append(y.dtype)
        return hpcpar.torch.mean(functional.cross_entropy(y, own, reduction="none"), model)

    def under(mixed: bool) -> Any:
        return torch.autocast(model.device.type, torch.bfloat16, enabled=mixed)

    for mixed in False, True:
        with under(mixed):
            model.step(images, labels, loss)
    assert types == [torch.float32, torch.bfloat16]
    model.eval()
    with torch.no_grad(), under(False):
        single = model(images)
    with torch.no_grad(), under(True):
        half = model(images.to(torch.bfloat16))
    assert half.dtype is torch.bfloat16 and single.dtype is torch.float32
    assert torch.equal(single, half.float())


def test_sums_of_bfloat16_are_float32(model: Any) -> None:
    """In bfloat16, 256 + 1 is 256."""
    rows = len(model.local(torch.zeros(BATCH)))
    values = torch.full((rows, 300), 1.0, dtype=torch.bfloat16, requires_grad=True)
    total = hpcpar.torch.mean(values, model)
    assert total.item() == 1.0 and total.dtype is torch.float32
    total.backward()
    assert values.grad is not None and values.grad.dtype is torch.bfloat16
    count = hpcpar.torch.sum(torch.tensor(257.0 if rows else 0.0), model)
    assert count.item() == 257 * min(P, BATCH)


def test_autocast_in_another_format_is_refused(model: Any) -> None:
    images = batches(SHAPE, 6, pixels=False)[0][0]
    kind = model.device.type
    with torch.autocast(kind, torch.float16), \
            pytest.raises(InputError, match="bfloat16 here, which needs no loss scale; write"):
        model(images)
    single = parallelize(smooth(), SHAPE, BATCH, "data")
    with torch.autocast(kind, torch.bfloat16):
        with pytest.raises(InputError, match=r"in fp32: make the model with .*precision='amp'"):
            single(images)
        with pytest.raises(InputError, match="in fp32: make the model"):
            single.step(images, images, lambda y, own: y.sum())
        with torch.autocast(kind, enabled=False):
            assert single(images).dtype is torch.float32


def test_a_plan_of_another_format_than_the_module_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="plan is in amp, but the module's parameters are in fp64"):
        parallelize(smooth().double(), SHAPE, BATCH, model.plan)
    with pytest.raises(InputError, match="precision 'amp': the module's parameters are in fp64"):
        parallelize(smooth().double(), SHAPE, BATCH, "data", precision="amp")
    with pytest.raises(InputError, match="parameters are in fp32; pass fp32 or amp, or convert"):
        parallelize(smooth(), SHAPE, BATCH, "data", precision="fp64")
    with pytest.raises(InputError, match="plan is in amp-fp16, whose loss scale only hpcpar run"):
        parallelize(smooth(), SHAPE, BATCH, replace(model.plan, precision="amp-fp16"))
    with pytest.raises(InputError, match=r"'amp-fp16': .* pass fp32 or amp, or convert"):
        parallelize(smooth(), SHAPE, BATCH, "data", precision="amp-fp16")
    single = replace(model.plan, precision="fp32")
    assert parallelize(smooth(), SHAPE, BATCH, single).plan.precision == "fp32"
    assert parallelize(smooth(), SHAPE, BATCH, model.plan).plan.precision == "amp"
