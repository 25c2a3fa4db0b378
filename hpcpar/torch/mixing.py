"""Refuses optimizers that mix numbers of cut weights: each rank would mix its own ones alone."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hpcpar.errors import InputError, on_all_ranks

#: Steps of a trial, and how much numbers may differ after them.
STEPS, TOLERANCE = 3, 1e-6


#: Models whose plans cut weights, and the optimizers that passed for each. One hook serves all: a
#: hook of its own would end with its model, maybe while PyTorch calls the hooks.
_checked: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Optimizer]] = (
    weakref.WeakKeyDictionary())


def refuse_mixing(model: nn.Module) -> None:
    """From now on, check each optimizer of the model's parameters at its first step."""
    _checked[model] = weakref.WeakSet()
    _register()


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_check)


def _check(optimizer: Optimizer, args: Any, options: Any) -> None:
    for model, passed in [*_checked.items()]:
        if optimizer in passed:
            continue
        own = {id(p) for p in model.parameters()}
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(p) in own for p in stepped) and mixes(optimizer):
            raise on_all_ranks(InputError(
                f"{type(optimizer).__name__} computes the update of a weight from other weights, "
                "too, but this plan cuts them over ranks: plan with plan='data', or use an "
                "optimizer that updates each weight by itself, as SGD and AdamW do"))
        passed.add(optimizer)


def mixes(optimizer: Optimizer) -> bool:
    """True if an optimizer of this kind changes a matrix in another way than its halves; False,
    too, where nothing can be tried, because its class has other arguments than its options.
    """
    numbers = torch.linspace(1, 3, 24 * (STEPS + 1), dtype=torch.float64).cos()
    start, *gradients = numbers.reshape(STEPS + 1, 4, 6)
    halves = [slice(0, 2), slice(2, 4)]
    with suppress(TypeError), torch.random.fork_rng([]):
        whole = _trained(optimizer, start, gradients)
        parts = [_trained(optimizer, start[half], [g[half] for g in gradients])
                 for half in halves]
        return not torch.allclose(torch.cat(parts), whole, TOLERANCE, TOLERANCE)
    return False


def _trained(like: Optimizer, start: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """A parameter after steps of an optimizer like the given one."""
    device = like.param_groups[0]["params"][0].device
    parameter, kind = nn.Parameter(start.to(device, copy=True)), type(like)
    known = inspect.signature(kind).parameters
    twin = kind([parameter], **{name: value for name, value in like.defaults.items()
                                if name in known})
    for gradient in gradients:
        def closure(gradient: Tensor = gradient) -> float:
            parameter.grad = gradient.to(device, copy=True)
            return 1.0

        closure()
        twin.step(closure)
    return parameter.detach()
