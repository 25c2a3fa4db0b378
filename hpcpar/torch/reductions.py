"""Sums, means and tensors over all ranks, under autograd.

The loss is one number that every rank computes: from the gradient of a sum over all ranks each
takes that of its own part, and sends nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcpar.torch.model import ParallelModule


class _Sum(torch.autograd.Function):
    """The sum of every entry over the ranks, of equal parts once."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, model: ParallelModule) -> Tensor:
        own = values.detach().numpy().astype(np.float64)
        total = np.empty(own.shape)
        model.group.Allreduce(np.ascontiguousarray(own if model.engine.counts else own * 0), total)
        return torch.from_numpy(total).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    """A whole output from the boxes of all ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, model: ParallelModule, of: int) -> Tensor:
        own = (model.places(of), values.detach().numpy()) if model.engine.counts else None
        ctx.own = model.places(of)
        whole = np.zeros((model.plan.batch, *model.sample_shape(of)), values.numpy().dtype)
        for found in model.group.allgather(own):
            if found is not None:
                whole[np.ix_(*found[0])] = found[1]
        return torch.from_numpy(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.from_numpy(gradients[0].numpy()[np.ix_(*ctx.own)]), None, None


def sum(values: Tensor, model: ParallelModule) -> Tensor:
    """Sums of numbers over all ranks, entry by entry; the shape stays.

    Parameters
    ----------
    values : Tensor
        This rank's summands, of its box of the outputs: of the batch, ``values.sum()``; by class,
        ``values.sum((0, 2, 3))``.
    """
    result: Tensor = _Sum.apply(values, model)
    return result


def mean(values: Tensor, model: ParallelModule) -> Tensor:
    """The mean of values over the whole batch (and all pixels), however unevenly it is cut.

    Parameters
    ----------
    values : Tensor
        A value for each sample, pixel or output of this rank's box, as losses give with
        ``reduction="none"``.
    """
    count = torch.tensor(float(values.numel()), dtype=torch.float64)
    return sum(values.sum(), model) / sum(count, model).to(values.dtype)


def gather(values: Tensor, model: ParallelModule, of: int = 0) -> Tensor:
    """The whole output ``of`` on every rank, from the boxes of all ranks: for losses that compare
    samples with each other, and for metrics. Not for micro-batches.
    """
    result: Tensor = _Gather.apply(values, model, of)
    return result


def clip_grad_norm_(model: ParallelModule, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scales all gradients so that their norm over all ranks is at most `max_norm`; every parameter
    counts once. PyTorch's own function knows this rank's parameters only.

    Returns
    -------
    Tensor
        The norm before.
    """
    grads = [p.grad for p, _, counts in model.parts if counts and p.grad is not None]
    most = norm_type == float("inf")
    powers = [float(g.abs().max() if most and g.numel() else g.double().abs().pow(norm_type).sum())
              for g in grads]
    found = model.engine.world.comm.allgather(max(powers, default=0.0) if most
                                              else float(np.sum(powers)))
    norm = max(found) if most else float(np.sum(found)) ** (1 / norm_type)
    if norm > max_norm:
        for p, _, _ in model.parts:
            if p.grad is not None:
                p.grad.mul_(max_norm / (norm + 1e-6))
    return torch.tensor(norm, dtype=torch.float64)
