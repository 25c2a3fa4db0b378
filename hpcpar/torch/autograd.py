"""Connects PyTorch's autograd to a schedule's forward and backward pass."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcpar.errors import RunError


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
