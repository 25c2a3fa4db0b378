"""Gradients that a module defines by itself (``torch.autograd.Function``), which no trace shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

#: Largest relative difference between equal gradients.
WITHIN = 1e-4


@dataclass(frozen=True)
class Use:
    """A call of a function with a gradient of its own."""

    function: type[Function]
    arguments: tuple[Any, ...]


@contextmanager
def recorded() -> Iterator[list[Use]]:
    """A context that collects the calls of functions outside of PyTorch, and of checkpoints."""
    uses: list[Use] = []
    kept = Function.__dict__["apply"]

    def apply(cls: type[Function], *arguments: Any, **more: Any) -> Any:
        if not cls.__module__.startswith("torch.") or cls is CheckpointFunction:
            uses.append(Use(cls, arguments))
        return kept.__func__(cls, *arguments, **more)

    Function.apply = classmethod(apply)
    try:
        yield uses
    finally:
        Function.apply = kept


def differing(uses: list[Use], samples: int) -> list[str]:
    """The functions whose gradients are not shown to equal their operators' by random numbers.

    Parameters
    ----------
    samples : int
        Samples of the trace, a prime number: two are enough here.
    """
    alike = {(use.function, *((a.ndim, a.requires_grad) if isinstance(a, Tensor) else repr(a)
                              for a in use.arguments)): use for use in uses}
    return sorted({use.function.__name__ for use in alike.values()
                   if not _is_usual(use, samples)})


def _is_usual(use: Use, samples: int) -> bool:
    if any(isinstance(a, Tensor) and not a.is_floating_point() for a in use.arguments):
        return False
    draw = torch.Generator().manual_seed(0)
    drawn = [_numbers([2 * n // samples if n and n % samples == 0 else n for n in each.shape],
                      each.dtype, draw)
             if isinstance(each, Tensor) else each for each in use.arguments]
    learn = [isinstance(each, Tensor) and each.requires_grad for each in use.arguments]
    if not any(learn):  # images, whose gradient may be asked for
        learn = [isinstance(each, Tensor) for each in use.arguments]
    function = use.function
    forward: Callable[..., Any] = function.forward
    if function.setup_context is Function.setup_context:
        forward = partial(forward, _Context())
    try:
        own, traced = (_gradients(run, drawn, learn) for run in (function.apply, forward))
    except Exception:  # the user's code may raise anything
        return False
    return all(torch.allclose(a, b, WITHIN, WITHIN * float(b.abs().max()))
               for a, b in zip(own, traced, strict=True) if a.numel())


def _numbers(shape: list[int], dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """Random numbers of several magnitudes, so that bounds from 0.01 to 10 are met."""
    magnitudes = 10 ** (3 * torch.rand(shape, generator=draw, dtype=dtype) - 2)
    return torch.randn(shape, generator=draw, dtype=dtype) * magnitudes


def _gradients(run: Callable[..., Any], drawn: list[Any], learn: list[bool]) -> list[Tensor]:
    leaves = {i: each.detach().requires_grad_() for i, each in enumerate(drawn) if learn[i]}
    results = run(*(leaves[i].clone() if i in leaves else each for i, each in enumerate(drawn)))
    results = [y for y in (results if isinstance(results, tuple) else (results,))
               if isinstance(y, Tensor) and y.requires_grad]
    draw = torch.Generator().manual_seed(1)
    return list(torch.autograd.grad(
        results, [*leaves.values()],
        [torch.randn(y.shape, generator=draw, dtype=y.dtype) for y in results],
        materialize_grads=True)) if results else [torch.zeros_like(x) for x in leaves.values()]


class _Context:
    """Takes all that a forward pass keeps for the backward pass."""

    needs_input_grad = (True,) * 64

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None
