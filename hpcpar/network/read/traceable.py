"""Calls that ``torch.export`` cannot trace, as calls that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode

#: Most items of a tensor whose numbers a trace computes.
MOST_NUMBERS = 64


class _Traceable(TorchFunctionMode):
    """Takes tensors' `data` as what `detach` returns, and short ranges as tensors of numbers."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type],
                           args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
                           ) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.data.__get__:
            return torch.Tensor.detach(args[0])
        if func is torch.arange and args and all(type(each) is int for each in args):
            numbers = range(*args)
            if len(numbers) <= MOST_NUMBERS and not {"out", "layout"} & {*kwargs}:
                return torch.tensor(list(numbers), **{"dtype": torch.int64, **kwargs})
        return func(*args, **kwargs)


@contextmanager
def traceable() -> Iterator[None]:
    """A context for traces, which also compute small tensors of numbers, as of sizes."""
    kept = [(each, each.CONSTANT_NUMEL_LIMIT) for each in (fake_tensor, proxy_tensor)
            if hasattr(each, "CONSTANT_NUMEL_LIMIT")]
    try:
        for each, _ in kept:
            each.CONSTANT_NUMEL_LIMIT = MOST_NUMBERS
        with _Traceable():
            yield
    finally:
        for each, before in kept:
            each.CONSTANT_NUMEL_LIMIT = before
