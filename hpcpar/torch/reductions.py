"""Sums, means and tensors over all ranks, under autograd.

Every rank computes the same loss. The backward pass of a sum over ranks needs no communication:
each rank uses the gradient of its own part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcpar.torch.model import ParallelModule

#: Tensors of more entries are summed by MPI.
_SHARED = 16


class _Sum(torch.autograd.Function):
    """The sum of each entry over the ranks; equal parts count once."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, model: ParallelModule) -> Tensor:
        engine, own = model.engine, values.detach().double().cpu().numpy()
        own = own if engine.counts else np.zeros_like(own)
        small = own.size <= _SHARED
        parts = engine.share("a sum over ranks", own if small else own.shape).values()
        if small:
            return torch.from_numpy(np.stack([*parts])).sum(0).to(values)
        total = np.empty(own.shape)
        engine.group.Allreduce(np.ascontiguousarray(own), total)
        return torch.from_numpy(total).to(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    """A whole output from the boxes of all ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, model: ParallelModule, output: int) -> Tensor:
        ctx.places = model.places(output)
        engine = model.engine
        own = values.detach().cpu().numpy()
        box = (ctx.places, own) if engine.counts else None
        whole = np.zeros((model.plan.batch, *model.sample_shape(output)), own.dtype)
        for part in engine.share("a gathered output", box).values():
            if part is not None:
                whole[np.ix_(*part[0])] = part[1]
        return torch.from_numpy(whole).to(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][np.ix_(*ctx.places)], None, None


def sum(values: Tensor, model: ParallelModule) -> Tensor:
    """The sum of a tensor over all ranks, entry by entry.

    Parameters
    ----------
    values : Tensor
        Sums over this rank's box of the outputs, such as ``values.sum()`` for a sum over the batch
        or ``values.sum((0, 2, 3))`` for sums by class.
    """
    result: Tensor = _Sum.apply(_wide(values), model)
    return result


def mean(values: Tensor, model: ParallelModule) -> Tensor:
    """The mean of values over the whole batch (and all pixels), even with uneven parts.

    Parameters
    ----------
    values : Tensor
        One value per sample, pixel or output of this rank's box, such as a loss with
        ``reduction="none"``.
    """
    count = torch.tensor(float(values.numel()), dtype=torch.float64)
    values = _wide(values)
    return sum(values.sum(), model) / sum(count, model).to(values)


def gather(values: Tensor, model: ParallelModule, of: int = 0) -> Tensor:
    """The whole output ``of`` on every rank, for metrics and losses that compare samples.

    It does not work with micro-batches.
    """
    result: Tensor = _Gather.apply(_wide(values), model, of)
    return result.to(values)


def _wide(values: Tensor) -> Tensor:
    """Values in float32 if they are bfloat16, which counts to 256 only."""
    return values.float() if values.dtype is torch.bfloat16 else values


def clip_grad_norm_(model: ParallelModule, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    Every parameter counts once. PyTorch's function only sees this rank's parameters.

    Returns
    -------
    Tensor
        The norm before scaling.
    """
    grads = [p.grad for p, _, counts in model.parts if counts and p.grad is not None]
    is_max = norm_type == float("inf")
    powers = [float(g.abs().max() if is_max and g.numel() else
                    g.abs().double().pow(norm_type).sum()) for g in grads]
    own = max(powers, default=0.0) if is_max else float(np.sum(powers))
    by_rank = [*model.engine.share("the norm of the gradients", own).values()]
    norm = max(by_rank) if is_max else float(np.sum(by_rank)) ** (1 / norm_type)
    if norm > max_norm:
        for p, _, _ in model.parts:
            if p.grad is not None:
                p.grad.mul_(max_norm / (norm + 1e-6))
    return torch.tensor(norm, dtype=torch.float64)
