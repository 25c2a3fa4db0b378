"""The CPU backend with PyTorch's convolutions (oneDNN), where they are chosen, and its batch
normalization.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcpar.kernels.bfloat16 import is_half, on_copies
from hpcpar.kernels.conv_choice import LAST, NUMPY, PASSES, RULE, Choice, conv_kind, in_words
from hpcpar.kernels.geometry import ConvSpec, Ints
from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.kernels.numpy_batchnorm import backward_line, forward_line
from hpcpar.kernels.torch_conv import TorchCall, torch_call

_norm_backward = torch.ops.aten.native_batch_norm_backward.default
#: Numbers of two parameters of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


class TorchBackend(NumpyBackend):
    """The NumPy backend, with PyTorch for some kinds of convolutions, with equal groups.

    Both work on the same arrays. A convolution by PyTorch calls `tick` once, at its end. Where
    oneDNN supports bfloat16, it reads such arrays, adds in float32 and rounds once, also weight
    gradients; NumPy gets float32 copies.
    """

    def __init__(self, choice: Choice = RULE) -> None:
        super().__init__()
        self._choice = choice
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            self.bfloat16_kernels |= {"conv_forward", "conv_backward_data", "conv_backward_weight"}
        keep_freed_memory()

    @property
    def versions(self) -> dict[str, str]:
        return {"convolutions": f"PyTorch {torch.__version__} for {in_words(self._choice)}"
                                + ("; NumPy" if NUMPY in self._choice.values() else "")}

    @property
    def conv_choice(self) -> Choice:
        return self._choice

    def _call(self, which: int, x: Ints, w: Ints, y: Ints, spec: ConvSpec) -> TorchCall | None:
        """PyTorch's arguments for pass `which` of `PASSES`; None if NumPy computes it."""
        library = self._choice[f"{conv_kind(w, y, spec)} {PASSES[which]}"]
        return None if library == NUMPY else torch_call(x, w, y, spec, library == LAST)

    def _by_numpy(self, kernel: str, *args: Any) -> None:
        method = getattr(super(), kernel)
        if is_half(args[0]):
            on_copies(self, kernel, method, *args)
        else:
            method(*args)

    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        call = self._call(0, x.shape, w.shape, out.shape, spec)
        if call is None:
            self._by_numpy("conv_forward", x, w, bias, spec, out, tick)
            return
        _store(call.forward(_tensor(x), _tensor(w), None if bias is None else _tensor(bias)), out,
               tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        call = self._call(1, dx.shape, w.shape, dy.shape, spec)
        if call is None:
            self._by_numpy("conv_backward_data", dy, w, spec, dx, tick)
            return
        _store(call.backward_data(_tensor(dy), _tensor(w)), dx, tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        call = self._call(2, x.shape, dw.shape, dy.shape, spec)
        if call is None:
            self._by_numpy("conv_backward_weight", x, dy, spec, dw, dbias, tick)
            return
        gradient, sums = _tensor(dy), dbias is not None and not is_half(dy)
        weight, bias = call.backward_weight(_tensor(x), gradient, dw.shape, sums)
        if sums:
            _store(bias, dbias)
        elif dbias is not None:  # oneDNN would round them
            _store(gradient.sum((0, *range(2, dy.ndim)), dtype=torch.float32), dbias)
        _store(weight, dw, tick)

    # NumPy's `channel_moments` stays: PyTorch would add x ** 2 in float32.
    def batchnorm_forward(self, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                          out: Array) -> None:
        _to_line(x, *forward_line(mean, inv_std, w, b), out)

    def channel_moments_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array,
                                 out: Array) -> None:
        if x.size == 0:
            out[...] = 0
            return
        channels = (torch.from_numpy(a.astype(x.dtype)) for a in (mean, inv_std))
        _, weight, bias = _norm_backward(_tensor(dy), _tensor(x), None, None, None, *channels,
                                         True, 0.0, (False, True, True))
        out[:, 0], out[:, 1] = bias.numpy(), weight.numpy()

    def batchnorm_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                           sums: Array, count: int, dx: Array) -> None:
        dy_factor, x_factor, addend = backward_line(mean, inv_std, w, sums, count)
        _to_line(dy, dy_factor, addend, dx)
        factor = torch.from_numpy(x_factor.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 2)))
        _tensor(dx).addcmul_(_tensor(x), factor)


def _tensor(array: Array) -> Tensor:
    """The same memory as a tensor; NumPy's bfloat16 is not PyTorch's."""
    if is_half(array):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_line(x: Array, factor: Array, addend: Array, out: Array) -> None:
    """out = factor * x + addend per channel, by the normalization with mean 0 and variance 1."""
    factor, addend = (torch.from_numpy(a.astype(x.dtype)) for a in (factor, addend))
    given = _tensor(x)
    result, none = _tensor(out), given.new_empty(0)
    if x.size:
        torch.native_batch_norm(given, factor, addend, torch.zeros_like(factor),
                                torch.ones_like(factor), False, 0.0, 0.0,
                                out=(result, none, none))


def _store(result: Tensor, out: Array, tick: Tick | None = None) -> None:
    _tensor(out).copy_(result)
    if tick is not None:
        tick()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for later allocations.

    PyTorch allocates every output anew. The system zeroes new pages, which would take a fifth of
    VGG-16's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries do not have it
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_MMAP_MAX, 0)
