"""Parts of PyTorch modules as data: calls of PyTorch's operators by name, and how they run.

A program is a JSON object: ``inputs``, the shape of a sample of each input; ``calls``, a list of
[operator, arguments by name]; ``constants``; ``drops``, the number of dropouts and noises and the
largest number of values of a sample in one; and ``state``, the weights that are state, each with
the call that computes its new values in training. In arguments, "%x0" is an input, "%w0" a tensor
of weights, "%c0" a constant, "%t0" the result of a call; {"samples": 2} is twice the number of
samples. The last result is the output. Only operators that compute are called: a program from a
file runs no code of the file.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape

#: Factors of a dropout's values: from the tensor, its axis of samples, the rate and the number of
#: the dropout.
Drop = Callable[[Tensor, int, float, int], Tensor]
#: Random numbers: from a tensor with their shape and type, its axis of samples, the function of
#: PyTorch that draws them, and their number among the dropouts.
Noise = Callable[[Tensor, int, Callable[..., Tensor], int], Tensor]
#: Operators with random numbers that a program may call.
DROPOUT, ATTENTION = "aten.dropout.default", "aten.scaled_dot_product_attention.default"
NOISES = {"aten.randn_like.default": torch.randn, "aten.rand_like.default": torch.rand}
#: Operators that PyTorch does not differentiate for complex numbers.
SCATTERS = "aten.slice_scatter.default", "aten.select_scatter.default"
#: Operators that touch files.
REFUSED = ("from_file",)
_NAME = re.compile(r"aten\.[a-z]\w*\.\w+|aten\._\w+\.\w+")


def operator(name: str) -> Any:
    """PyTorch's operator ``aten.name.overload``.

    Raises
    ------
    InputError
        There is none, or it does more than compute a new tensor.
    """
    found: Any = None
    if _NAME.fullmatch(name) and name.split(".")[1] not in REFUSED:
        found = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
    if found is None or found._schema.is_mutable:
        raise InputError(f"PyTorch {torch.__version__} has no operator '{name}' that only "
                         "computes; read the network again from its module")
    return found


class AtenProgram:
    """A program that is ready to run."""

    def __init__(self, text: str) -> None:
        data = json.loads(text)
        self._calls: list[tuple[str, Any, Mapping[str, Any]]] = [
            (name, None if name == "getitem" else operator(name), arguments)
            for name, arguments in data["calls"]]
        self._constants = [torch.from_numpy(np.frombuffer(
            base64.b64decode(values), kind).reshape(shape).copy())
            for kind, shape, values in data["constants"]]
        self.inputs: list[Shape] = [tuple(shape) for shape in data["inputs"]]
        self.drops: tuple[int, int] = tuple(data["drops"])
        self._state = {int(call): int(weight) for weight, call in data["state"]}

    def __call__(self, inputs: Sequence[Tensor], weights: Sequence[Tensor],
                 drop: Drop | None = None, noise: Noise | None = None,
                 changes: bool = False) -> Tensor:
        """The output of samples; `drop` is None in evaluation. Without `noise`, PyTorch draws.

        With `changes`, weights that are state get their new values; else they have them already.
        """
        first = inputs[0]
        run = _Run(len(first), first.dtype, first.device)
        xs = [x.reshape(-1, *shape) for x, shape in zip(inputs, self.inputs, strict=True)]
        for letter, tensors in ("x", xs), ("w", weights), ("c", self._constants):
            run.known |= {f"%{letter}{i}": run.placed(t) for i, t in enumerate(tensors)}
        number = 0
        for i, (name, function, given) in enumerate(self._calls):
            arguments = {key: run.value(value) for key, value in given.items()}
            if name == "getitem":
                result = arguments["self"][arguments["which"]]
            elif name == DROPOUT:
                result = arguments["input"]
                if drop is not None:
                    result = result * drop(result, arguments["axis"], arguments["p"], number)
                number += 1
            elif name == ATTENTION and "axis" in arguments:
                result = _attention(drop, number, **arguments)
                number += 1
            elif name in NOISES:
                axis = arguments.pop("axis")
                result = function(**arguments)
                if noise is not None:
                    result = noise(result, axis, NOISES[name], number)
                number += 1
            elif name in SCATTERS and arguments["self"].is_complex():
                result = _scattered(function, **arguments)
            else:
                result = function(**arguments)
            if i in self._state and not changes:
                result = run.known[f"%w{self._state[i]}"].detach()
            run.known[f"%t{i}"] = result
        for call, weight in self._state.items() if changes else ():
            weights[weight].data.copy_(run.known[f"%t{call}"])  # no gradient reads old values
        return cast(Tensor, result)


class _Run:
    """The tensors of a run by name."""

    def __init__(self, samples: int, dtype: torch.dtype, device: torch.device) -> None:
        self.known: dict[str, Any] = {}
        self._samples, self._dtype, self._device = samples, dtype, device

    def placed(self, tensor: Tensor) -> Tensor:
        """A tensor on the device of the inputs, in their type or the complex one of it."""
        return tensor.to(self._device, self._as_precise(tensor.dtype))

    def _as_precise(self, dtype: torch.dtype) -> torch.dtype:
        """A type of real or complex numbers, as precise as the inputs."""
        if dtype.is_complex:
            return self._dtype.to_complex()
        return self._dtype if dtype.is_floating_point else dtype

    def value(self, given: Any) -> Any:
        """The value of an argument."""
        if isinstance(given, str) and given.startswith("%"):
            return self.known[given]
        if isinstance(given, list):
            return [self.value(item) for item in given]
        if not isinstance(given, dict):
            return given
        ((what, value),) = given.items()
        if what == "samples":
            return self._samples * value
        if what == "device":
            return self._device
        found = getattr(torch, value)
        return self._as_precise(found) if isinstance(found, torch.dtype) else found


def _scattered(function: Any, self: Tensor, src: Tensor, dim: int = 0, **more: int) -> Tensor:
    """A part of a complex tensor replaced, by pairs of real numbers."""
    pairs = (torch.view_as_real(t.resolve_conj()) for t in (self, src))
    return torch.view_as_complex(function(*pairs, dim % self.dim(), **more).contiguous())


def _attention(drop: Drop | None, number: int, query: Tensor, key: Tensor, value: Tensor,
               dropout_p: float, axis: int, attn_mask: Tensor | None = None,
               is_causal: bool = False, scale: float | None = None,
               enable_gqa: bool = False) -> Tensor:
    """Attention with dropout, as PyTorch documents it."""
    if drop is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.size(-1)))
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = scores.softmax(-1)
    return shares * drop(shares, axis, dropout_p, number) @ value
