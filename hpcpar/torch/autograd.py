"""Connects PyTorch's autograd to a schedule's forward and backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hpcpar.errors import RunError


class SchedulePasses(torch.autograd.Function):
    """A schedule's forward and backward pass as one function of the images.

    It computes from this rank's `box` of them.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, model: Any, box: Tensor,
                images: Tensor) -> tuple[Tensor, ...]:
        ctx.model, ctx.place = model, (images.shape, images.device, images.dtype)
        outputs = model.run_forward(box)
        ctx.iteration = model.engine.iterations
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, Tensor | None]:
        engine = ctx.model.engine
        if not engine.under_way or ctx.iteration != engine.iterations:
            raise RunError("another pass through the model, or a backward pass, followed the "
                           "forward pass of this loss; call backward right after the forward pass")
        ctx.model.run_backward(gradients)
        if not ctx.needs_input_grad[3]:
            return None, None, None, None
        shape, device, dtype = ctx.place
        return None, None, None, engine.images_gradient().reshape(shape).to(device, dtype)


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
