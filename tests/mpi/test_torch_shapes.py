"""Modules whose outputs have any shape train in `hpcpar.torch` as in PyTorch."""

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
from torch.utils._pytree import tree_leaves

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize
from tests.idioms import ENDINGS, SHAPE, module

SIZE = world().size
BATCH = 5 if SIZE < 5 else 9


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def step_of(model: Any, optimizer: Any, images: Tensor, targets: list[Tensor]) -> list[Tensor]:
    """A training step of either; returns the whole outputs."""
    outputs = tree_leaves(model(images))
    if isinstance(model, hpcpar.torch.ParallelModule):
        own = [model.local(target, of=i) for i, target in enumerate(targets)]
        errors = [hpcpar.torch.mean((y - t).square(), model)
                  for y, t in zip(outputs, own, strict=True)]
        whole = [hpcpar.torch.gather(y, model, i) for i, y in enumerate(outputs)]
        model.backward(torch.stack(errors).sum())
    else:
        whole = outputs
        torch.stack([(y - t).square().mean()
                     for y, t in zip(outputs, targets, strict=True)]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [y.detach() for y in whole]


def require_equal_steps(plain: Any, shape: tuple[int, ...], strategy: str, **options: Any) -> None:
    model = parallelize(copy.deepcopy(plain), shape, BATCH, strategy, **options)
    optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (plain, model)]
    images = numbers(1, BATCH, *shape)
    targets = [numbers(2 + i, *y.shape) for i, y in enumerate(tree_leaves(
        copy.deepcopy(plain)(images)))]
    for _ in range(2):
        wanted, found = (step_of(m, o, images, targets)
                         for m, o in zip((plain, model), optimizers, strict=True))
        for y, own in zip(wanted, found, strict=True):
            assert y.shape == own.shape
            torch.testing.assert_close(own, y, rtol=1e-9, atol=1e-12)
    state = model.state_dict()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", ["data", "spatial"])
@pytest.mark.parametrize("name", ENDINGS)
def test_outputs_of_any_shape_train_as_pytorch(name: str, strategy: str) -> None:
    require_equal_steps(module(name), SHAPE, strategy)


class Decoder(nn.Module):
    """An image from a vector, as generators and decoders make it."""

    def __init__(self, first: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.shape, self.norm = first, shape, nn.BatchNorm2d(6)
        self.up, self.factors = nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.Parameter(torch.ones(4, 1, 1))
        self.last = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(self.first(x.reshape(-1, *self.shape)).reshape(-1, 6, 3, 4)).relu())
        return self.last(y * self.factors).tanh()


@pytest.mark.parametrize("strategy", ["data", "filter", "spatial"])
@pytest.mark.parametrize(("first", "shape"), [
    (nn.Linear(7, 72), (7,)), (nn.ConvTranspose2d(7, 6, (3, 4)), (7, 1, 1))])
def test_images_from_vectors_train_as_pytorch(first: nn.Module, shape: tuple[int, ...],
                                              strategy: str) -> None:
    torch.manual_seed(0)
    for p in first.parameters():
        nn.init.normal_(p)
    require_equal_steps(Decoder(first, shape).double(), (7,), strategy, batch_norm="sync")


def test_labels_have_the_pixels_of_a_permuted_output() -> None:
    """A class per pixel of N x H x W x C, as of N x C x H x W, and a mask per anchor."""
    model = parallelize(module("image with channels last"), SHAPE, BATCH, "spatial")
    labels = torch.arange(BATCH * SHAPE[1] * SHAPE[2]).reshape(BATCH, *SHAPE[1:])
    own, y = model.local(labels), model(numbers(1, BATCH, *SHAPE))
    assert own.shape == y.shape[:3]
    rows, columns, pixels = (torch.from_numpy(i) for i in model.places(0)[:3])
    assert torch.equal(own, labels[rows][:, columns][:, :, pixels])
    assert SIZE == 1 or y.shape[:3] != labels.shape


@pytest.mark.parametrize("name", ["two heads of detection", "the same twice",
                                  "image with channels last"])
def test_the_loss_of_a_micro_batch_gets_outputs_of_any_shape(name: str) -> None:
    plain = module(name)
    model = parallelize(copy.deepcopy(plain), SHAPE, BATCH, "spatial", microbatches=2)
    optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (plain, model)]
    images = numbers(1, BATCH, *SHAPE)
    targets = [numbers(2 + i, *y.shape) for i, y in enumerate(tree_leaves(plain(images)))]

    def loss(outputs: Any, own: list[Tensor]) -> Tensor:
        return torch.stack([hpcpar.torch.mean((y - t).square(), model) for y, t in zip(
            tree_leaves(outputs), own, strict=True)]).sum()

    model.step(images, targets, loss)
    optimizers[1].step()
    step_of(plain, optimizers[0], images, targets)
    state = model.state_dict()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12)
