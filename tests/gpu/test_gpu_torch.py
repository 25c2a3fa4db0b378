"""`hpcpar.torch` on a GPU: a loop on the card equals the same loop on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 36, 5)).double()


def trained(device: str) -> tuple[Any, list[float]]:
    """The model and the losses of its steps."""
    model = hpcpar.torch.parallelize(module(), (2, 12, 12), 8, "data", device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    seeded, losses = torch.Generator().manual_seed(1), []
    for _ in range(6):
        images = torch.randn(8, 2, 12, 12, dtype=torch.float64, generator=seeded)
        labels = model.local(torch.randint(0, 5, (8,), generator=seeded))
        loss = hpcpar.torch.mean(functional.cross_entropy(model(images), labels,
                                                          reduction="none"), model)
        model.backward(loss)
        hpcpar.torch.clip_grad_norm_(model, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_a_loop_on_the_card_trains_as_on_the_cpu(gpu: Any) -> None:
    model, losses = trained("gpu")
    other, expected = trained("cpu")
    assert losses == pytest.approx(expected, rel=1e-9)
    state: dict[str, Tensor] = other.state_dict()
    for name, value in model.state_dict().items():
        assert value.device == model.device
        assert torch.allclose(value.cpu(), state[name], 1e-8, 1e-10), name


def test_parameters_are_the_executors_memory(gpu: Any) -> None:
    model = hpcpar.torch.parallelize(module(), (2, 12, 12), 8, "data", device="gpu")
    shared = model.engine.executor.parameters
    for name, place in model.tensor_places.items():
        if place.what in ("weight", "bias"):
            p = shared[place.layer.name]
            weight, bias = p.split(p.flat)
            array = weight if place.what == "weight" else bias
            assert model.get_parameter(name).data_ptr() == array.data.ptr
