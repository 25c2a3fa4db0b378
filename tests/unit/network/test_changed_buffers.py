"""Buffers that a forward pass changes, and parts that no gradient reaches, are named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import ClassVar

import pytest

from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn

from hpcpar.network import from_torch
from hpcpar.network.layers import MeanSquaredError, Outputs
from hpcpar.network.read.torch_module import traced

SHAPE = (2, 12, 12)


class Counts(nn.Module):
    """Keeps a buffer up to date in one of several ways, in training only or always."""

    WAYS: ClassVar[dict[str, Callable[[nn.Module, Tensor], object]]] = {
        "in place": lambda m, y: m.mean.mul_(0.9).add_(0.1 * y.detach()),
        "anew": lambda m, y: setattr(m, "mean", 0.9 * m.mean + 0.1 * y.detach()),
        "copied": lambda m, y: m.mean.copy_(y.detach()),
        "a part": lambda m, y: m.mean[1:].add_(1),
        "as out": lambda m, y: torch.div(m.mean, 2, out=m.mean)}

    def __init__(self, way: str, always: bool = False, hidden: bool = False) -> None:
        super().__init__()
        self.conv, self.way, self.always = nn.Conv2d(2, 4, 3), way, always
        self.hidden = hidden
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.training or self.always:
            with torch.set_grad_enabled(not self.hidden):
                self.WAYS[self.way](self, y.mean((0, 2, 3)))
        return y


class Taught(nn.Module):
    """A part that is only read without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.teacher = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.teacher(x)
        return self.first(x) - y


@pytest.mark.parametrize("way", Counts.WAYS)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_changed_buffer_is_named(way: str, hidden: bool) -> None:
    """It would stay as it is without a word; evaluation may not change it."""
    message = "forward pass changes 'mean', which a run would leave as they are"
    module = Counts(way, hidden=hidden)
    found = traced(module, SHAPE, MeanSquaredError)
    assert message in found.unlike
    found.with_evaluation(module, needed=True)
    with pytest.raises(InputError, match=message):
        found.with_evaluation(Counts(way, True, hidden), needed=True)


def test_a_part_without_gradients_is_named_unless_frozen() -> None:
    """PyTorch's optimizers leave it alone, and would shrink it if its gradients were zeros."""
    notes = from_torch(Taught(), SHAPE, MeanSquaredError).notes
    assert "no gradient reaches 'teacher.bias', 'teacher.weight'" in notes[-1]
    taught = Taught()
    taught.teacher.requires_grad_(False)
    assert traced(taught, SHAPE, MeanSquaredError).unlike == ""


class Scaled(nn.Module):
    """Weights times a buffer that shrinks in each step; one of several things is unusual."""

    def __init__(self, what: str = "", kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.last, self.what = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 3), what
        self.register_buffer("gain", torch.tensor(4, dtype=kind), persistent=what != "unsaved")

    def forward(self, x: Tensor) -> Tensor:
        old = self.gain.clone()
        if self.training:
            self.gain.div_(2, rounding_mode="trunc" if self.what == "whole number" else None)
        gain = old if self.what == "not read" else self.gain
        gain = gain + old if self.what == "read before, too" else gain
        y = nn.functional.conv2d(self.first(x), self.last.weight * gain, self.last.bias)
        return y * gain if self.what == "read by two parts" else y


UNUSUAL = {"unsaved": torch.float32, "whole number": torch.int64, "not read": torch.float32,
           "read by two parts": torch.float32, "read before, too": torch.float32}


def test_a_buffer_that_one_part_changes_is_its_state() -> None:
    """Where the user writes the loop; a command's optimizer would change it, too."""
    found = traced(Scaled(), SHAPE, Outputs)
    assert not found.unlike and found.state == {"gain"}
    assert "forward pass changes 'gain'" in traced(Scaled(), SHAPE, MeanSquaredError).unlike


@pytest.mark.parametrize("what", UNUSUAL)
def test_other_changed_buffers_are_named(what: str) -> None:
    found = traced(Scaled(what, UNUSUAL[what]), SHAPE, Outputs)
    assert "forward pass changes 'gain'" in found.unlike and not found.state


def test_normalized_spectra_are_planned_with_a_note() -> None:
    """Their buffers change in each forward pass."""
    for normal in nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm:
        notes = from_torch(nn.Sequential(normal(nn.Conv2d(2, 4, 3)), nn.ReLU()), SHAPE,
                           MeanSquaredError).notes
        assert any("is computed from 0." in note for note in notes)
        assert "forward pass changes '0." in notes[-1]
