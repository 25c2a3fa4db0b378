"""Noise inside of a module: each sample has its own, the same under all plans with as many
micro-batches.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import BATCH, close


class Noisy(nn.Module):
    """Normal noise on an image, also of one channel for all, and uniform noise between layers with
    other axes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Tensor] = []
        self.first, self.last = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        one = self.given[2] if self.given else torch.randn(
            len(x), 1, *x.shape[2:], dtype=x.dtype)
        one = 0 * x[:, :1] + one
        x = self.first(x + one)
        normal = self.given[0] if self.given else torch.randn_like(x)
        y = self.last(x + 0.5 * normal)
        turned = y.transpose(0, 1)
        uniform = self.given[1].transpose(0, 1) if self.given else torch.rand_like(turned)
        return (turned * uniform).transpose(0, 1), normal, y, one


def step(model: Any, images: Tensor) -> list[Tensor]:
    """The whole outputs of a training pass."""
    outputs = model(images)
    model.backward(hpcpar.torch.mean(outputs[0] ** 2, model))
    return [hpcpar.torch.gather(each, model, of=i).detach() for i, each in enumerate(outputs)]


def test_noise_trains_as_pytorch_with_the_same_numbers() -> None:
    torch.manual_seed(0)
    module = Noisy().double()
    images = torch.randn(BATCH, 2, 12, 12, dtype=torch.float64)
    known: list[Tensor] = []
    for strategy in ("data", "filter", "spatial"):
        model = parallelize(module, (2, 12, 12), BATCH, strategy)
        out, normal, y, one = step(model, images)
        uniform = out / y
        assert not known or (torch.equal(known[0], normal) and close(known[1], uniform)
                             and torch.equal(known[2], one))
        known = [normal, uniform, one]
        module.given = known
        module(images)[0].square().mean().backward()
        assert close(out, module(images)[0].detach())
        if strategy == "data":
            for own, its in zip(model.parameters(), module.parameters(), strict=True):
                assert close(own.grad, its.grad)
        module.zero_grad()
        module.given = []
        again = step(model, images)
        with torch.no_grad():
            drawn = [model.eval()(images)[1] for _ in range(2)]
        assert not torch.equal(again[1], normal)
        assert not torch.equal(*drawn) or not drawn[0].numel()
    rows = known[0].flatten(1)
    assert abs(float(rows.mean())) < 0.05 and abs(float(rows.std()) - 1) < 0.05
    assert float(known[1].min()) >= 0 and abs(float(known[1].mean()) - 0.5) < 0.05
    assert float(torch.corrcoef(rows).fill_diagonal_(0).abs().max()) < 0.15
