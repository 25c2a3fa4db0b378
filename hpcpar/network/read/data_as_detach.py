"""`x.data`, which `torch.export` cannot trace, as `x.detach()`, which it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode


class DataAsDetach(TorchFunctionMode):
    """While it is entered, tensors' `data` is what `detach` returns."""

    def __torch_function__(self, func: Callable[..., object], types: Sequence[type],
                           args: tuple[object, ...] = (),
                           kwargs: Mapping[str, object] | None = None) -> object:
        if func == torch.Tensor.data.__get__:
            func, args = torch.Tensor.detach, args[:1]
        return func(*args, **(kwargs or {}))
