"""Parallel models whose parameters no layer holds as they are train as in PyTorch: complex ones, as
neural operators have, and weights that are computed or stored in another form.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest

from hpcpar.comm.world import world

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from hpcpar.errors import InputError
from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import STRATEGIES, close

SIZE = world().size
BATCH, SHAPE = 4 if SIZE < 5 else 9, (2, 8, 7)


class Operator(nn.Module):
    """A Fourier layer: low frequencies, weighted by complex numbers, beside a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 1, 1)
        self.gain = nn.Parameter(torch.ones(3, 1, 1))
        self.low = nn.Parameter(torch.randn(3, 3, 3, 2, dtype=torch.cfloat))
        self.high = nn.Parameter(torch.randn(3, 3, 3, 2, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x).tanh()
        given = torch.fft.rfft2(x * self.gain)
        made = torch.zeros(*given.shape, dtype=torch.cfloat, device=x.device).to(given.dtype)
        made[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", given[:, :, :3, :2], self.low)
        made[:, :, -3:, :2] = torch.einsum("bixy,ioxy->boxy", given[:, :, -3:, :2], self.high)
        return self.last(x + torch.fft.irfft2(made, s=x.shape[-2:]))


class Product(nn.Module):
    """A product with a weight [in, out], which is square: its shape does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(112, 112)), nn.Parameter(torch.randn(112))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight + self.bias


class Doubled(nn.Module):
    """A convolution with twice its parameter as its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, 2 * self.inner.weight, self.inner.bias)


class Standardized(nn.Module):
    """A convolution whose weights have the mean 0 and the deviation 1."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        w = self.inner.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        return functional.conv2d(x, w, self.inner.bias)


class Normed(nn.Sequential):
    """Convolutions with `weight_norm`, one of them frozen."""

    def __init__(self) -> None:
        norm = nn.utils.parametrizations.weight_norm
        super().__init__(norm(nn.Conv2d(2, 3, 3)), nn.Tanh(), norm(nn.Conv2d(3, 3, 3)), nn.Tanh(),
                         nn.Conv2d(3, 2, 1))
        self[2].requires_grad_(False)


def made() -> nn.Module:
    """In double precision, which `Module.double` leaves complex numbers out of."""
    torch.manual_seed(1)
    module = Operator().double()
    for name in ("low", "high"):
        value = getattr(module, name).detach()
        setattr(module, name, nn.Parameter(value.to(torch.cdouble)))
    return module


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strategy", ["data"] + ["pipeline"] * (SIZE in (2, 3)))
def test_complex_parameters_train_as_in_pytorch(strategy: str) -> None:
    """Weights, the norm of the gradients, and a loop that goes on from its state; in a pipeline,
    ranks without the part have nothing of them.
    """
    pair: list[Any] = [made(), parallelize(made(), SHAPE, BATCH, strategy)]
    optimizers = [torch.optim.Adam(model.parameters(), 0.01, eps=1e-3) for model in pair]
    for step in range(4):
        if step == 2:
            state = pair[1].state_dict(), hpcpar.torch.optimizer_state_dict(pair[1], optimizers[1])
            pair[1] = parallelize(made(), SHAPE, BATCH, strategy)
            optimizers[1] = torch.optim.Adam(pair[1].parameters(), 0.01, eps=1e-3)
            pair[1].load_state_dict(state[0])
            hpcpar.torch.load_optimizer_state_dict(pair[1], optimizers[1], state[1])
        images, targets = numbers(step, BATCH, *SHAPE), numbers(step + 9, BATCH, 1, *SHAPE[1:])
        alone, parallel = pair
        (alone(images) - targets).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        hpcpar.torch.mean((parallel(images) - parallel.local(targets)).square(),
                          parallel).backward()
        torch.testing.assert_close(hpcpar.torch.clip_grad_norm_(parallel, 0.1), norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    saved = pair[1].state_dict()
    for name, parameter in pair[0].named_parameters():
        assert saved[name].dtype is parameter.dtype
        torch.testing.assert_close(saved[name], parameter.detach(), rtol=1e-9, atol=1e-12)


def test_what_cannot_be_read_is_an_input_error_on_every_rank() -> None:
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, track_running_stats=False))
    with pytest.raises(InputError, match=r"operator batch_norm\.default is not supported"):
        parallelize(module, SHAPE, BATCH, "data")


@pytest.mark.parametrize("make", [Product, Doubled, Standardized, Normed])
def test_weights_in_another_form_train_as_in_pytorch(make: type[nn.Module]) -> None:
    torch.manual_seed(2)
    alone = make().double()
    parallel = parallelize(copy.deepcopy(alone), SHAPE, BATCH, "data")
    optimizers = [torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
                  for model in (alone, parallel)]
    for step in range(3):
        images = numbers(step, BATCH, *SHAPE)
        y = alone(images)
        targets = numbers(step + 9, *y.shape)
        (y - targets).square().mean().backward()
        hpcpar.torch.mean((parallel(images) - parallel.local(targets)).square(),
                          parallel).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    saved = parallel.state_dict()
    assert saved.keys() == alone.state_dict().keys()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-9, atol=1e-12)


class Blurred(nn.Module):
    """Buffers as weights: one row for all channels, and one that no state has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.register_buffer("row", torch.rand(1, 1, 3, 3))
        self.register_buffer("unsaved", torch.rand(4, 1, 3, 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(self.first(x).relu(), self.row.expand(4, 1, 3, 3), groups=4)
        return self.last(functional.conv2d(x, self.unsaved, groups=4))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_buffers_as_weights_train_as_in_pytorch(strategy: str) -> None:
    torch.manual_seed(0)
    module = Blurred().double()
    model = parallelize(module, (2, 12, 12), BATCH, strategy)
    images = torch.randn(BATCH, 2, 12, 12, dtype=torch.float64)
    y = model(images)
    model.backward(hpcpar.torch.mean(y * y, model))
    whole = hpcpar.torch.gather(y, model).detach()
    module(images).square().mean().backward()
    assert close(whole, module(images).detach())
    if strategy == "data":
        for own, its in zip(model.parameters(), module.parameters(), strict=True):
            assert close(own.grad, its.grad)
