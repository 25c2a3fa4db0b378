"""Connects PyTorch's autograd to a schedule's forward and backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcpar.errors import RunError, on_all_ranks

#: Relative difference between equal losses that rounding explains.
TOLERANCE = 1e-4


class SchedulePasses(torch.autograd.Function):
    """A schedule's forward and backward pass as one function."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, model: Any,
                images: NDArray[Any]) -> tuple[Tensor, ...]:
        ctx.model = model
        outputs = model.run_forward(images)
        ctx.iteration = model.engine.iterations
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        engine = ctx.model.engine
        if not engine.under_way or ctx.iteration != engine.iterations:
            raise RunError("another pass through the model, or a backward pass, followed the "
                           "forward pass of this loss; call backward right after the forward pass")
        ctx.model.run_backward(gradients)
        return None, None, None


class AddedGradients:
    """A context whose new gradients add to the parameters' gradients, as in PyTorch.

    `parts` has each parameter with its new gradient; see `ParallelModule.parts`.
    """

    def __init__(self, parts: list[tuple[nn.Parameter, Tensor, bool]]) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        self._before = [None if p.grad is None else p.grad.clone() for p, _, _ in self._parts]

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        if kind is not None:
            return
        for (p, gradient, _), before in zip(self._parts, self._before, strict=True):
            if before is not None:
                gradient += before
            p.grad = gradient if p.requires_grad else None


def require_alike(loss: float, group: Any) -> None:
    """Check that all ranks of a communicator have the same loss (RunError on every rank)."""
    losses = group.allgather(loss)
    first = losses[0]
    other = next((i for i, value in enumerate(losses) if not np.isclose(
        value, first, TOLERANCE, 0.0, equal_nan=True)), None)
    if other is not None:
        raise on_all_ranks(RunError(
            f"the loss is {first:.6g} on rank 0 and {losses[other]:.6g} on rank {other}: take "
            "means and sums over all ranks, with hpcpar.torch.mean and hpcpar.torch.sum"))
