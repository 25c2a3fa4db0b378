"""Gradients that a module defines by itself are read where they are the usual ones, else named."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.autograd import Function

from hpcpar.network.layers import MeanSquaredError
from hpcpar.network.read.torch_module import from_torch


class Swish(Function):
    """The usual gradient, with less memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        s = torch.sigmoid(ctx.saved_tensors[0])
        return dy * (s * (1 + ctx.saved_tensors[0] * (1 - s)))


class Scaled(Function):
    """The usual gradient of its first argument alone; the other one is a buffer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * ctx.saved_tensors[0], None


class Doubled(Function):
    """The usual gradient, in the newer style."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * ctx.factor, None


class Reversed(Function):
    """The negative gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return -dy, None


class Rounded(Function):
    """A gradient that passes where the forward pass has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Bounded(Function):
    """A gradient that passes beyond bounds, which small numbers would not meet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-8, 8)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Calls(nn.Module):
    def __init__(self, function: type[Function], *more: float) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), function
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function.apply(self.first(x), *self.more).mean((2, 3)))


def test_only_gradients_that_are_needed_count() -> None:
    class Buffered(Calls):
        def __init__(self) -> None:
            super().__init__(Scaled)
            self.register_buffer("factor", torch.rand(4, 1, 1))
            self.more = (self.factor,)

    notes = from_torch(Buffered(), (3, 8, 8), MeanSquaredError).notes
    assert not any("trains otherwise" in note for note in notes)


@pytest.mark.parametrize(("function", "more"), [(Swish, ()), (Doubled, (2.0,))])
def test_the_usual_gradient_is_read(function: type[Function], more: tuple[float, ...]) -> None:
    assert from_torch(Calls(function, *more), (3, 8, 8), MeanSquaredError).notes == ()
    assert "apply" in vars(Function) and Function.apply.__func__.__module__.startswith("torch.")


@pytest.mark.parametrize(("function", "more"), [(Reversed, (1.0,)), (Rounded, ()),
                                                  (Bounded, ())])
def test_another_gradient_is_named(function: type[Function], more: tuple[float, ...]) -> None:
    """Planned with a note; training would use the gradient of the operators."""
    (note,) = from_torch(Calls(function, *more), (3, 8, 8), MeanSquaredError).notes
    assert note.startswith("a run trains otherwise: module 'Calls'")
