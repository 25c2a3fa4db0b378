"""The CPU backend with PyTorch's convolutions (oneDNN), where they are chosen, and its batch
normalization.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
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
from hpcpar.kernels.numpy_conv import SHAPES

_forward = torch.ops.aten.convolution.default
_backward = torch.ops.aten.convolution_backward.default
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
        return None if library == NUMPY else _call(x, w, y, spec, library == LAST)

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
        y = _forward(call.padded(x), call.tensor(w), None if bias is None else _tensor(bias),
                     *call.geometry)
        _store(y, out, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        call = self._call(1, dx.shape, w.shape, dy.shape, spec)
        if call is None:
            self._by_numpy("conv_backward_data", dy, w, spec, dx, tick)
            return
        gradient = call.tensor(dy)
        # PyTorch reads only its shape
        x_shape = torch.empty(call.shape, dtype=gradient.dtype, memory_format=call.form)
        padded, _, _ = _backward(gradient, x_shape, call.tensor(w), None, *call.geometry,
                                 (True, False, False))
        _store(_with_pixels(padded, [-n for n in call.extra]), dx, tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        call = self._call(2, x.shape, dw.shape, dy.shape, spec)
        if call is None:
            self._by_numpy("conv_backward_weight", x, dy, spec, dw, dbias, tick)
            return
        gradient, sums = call.tensor(dy), dbias is not None and not is_half(dy)
        # PyTorch reads only the shape and the type of the weights.
        weights = torch.empty(dw.shape, dtype=gradient.dtype, memory_format=call.form)
        _, weight, bias = _backward(gradient, call.padded(x), weights, dw.shape[:1],
                                    *call.geometry, (False, True, sums))
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


@dataclass(frozen=True)
class TorchCall:
    """The arguments of a convolution in PyTorch, whose own padding is equal on both sides.

    Attributes
    ----------
    extra : list of int
        Pixels to add before and after each image axis, last axis first; negative to remove some.
    shape : tuple of int
        Shape of the input with these pixels.
    geometry : tuple
        Stride, padding, dilation, whether it is transposed, output padding, groups.
    form : torch.memory_format
        Of PyTorch's inputs.
    """

    extra: list[int]
    shape: Ints
    geometry: tuple[Ints, list[int], Ints, bool, Ints, int]
    form: torch.memory_format

    def tensor(self, array: Array) -> Tensor:
        """An array as it is, or a copy in another form."""
        return _tensor(array).contiguous(memory_format=self.form)

    def padded(self, x: Array) -> Tensor:
        """The input with the extra pixels."""
        return _with_pixels(self.tensor(x), self.extra)


@lru_cache(maxsize=SHAPES)
def _call(x: Ints, w: Ints, y: Ints, spec: ConvSpec, last: bool = False) -> TorchCall | None:
    """PyTorch's arguments for a convolution with these shapes; None if it cannot compute it."""
    groups = max(1, len(spec.segments))
    ins, outs = x[1] // groups, y[1] // groups
    equal = all((s.in_start, s.in_stop, s.out_start, s.out_stop)
                == (g * ins, (g + 1) * ins, g * outs, (g + 1) * outs)
                for g, s in enumerate(spec.segments))
    if not spec.segments or 0 in (*x, *w, *y) or not equal or (
            x[1], y[1]) != (groups * ins, groups * outs):
        return None
    extra: list[int] = []
    pads, extents = [], []
    for axis, (before, _) in enumerate(spec.pads):
        n, stride = x[2 + axis], spec.stride[axis]
        reach = (y[2 + axis] - 1) * stride + spec.dilation[axis] * (w[2 + axis] - 1) + 1
        after = reach - n - before
        symmetric = after <= before and n + 2 * before - reach < stride
        pads.append(before if symmetric else 0)
        extra_pixels = (0, 0) if symmetric else (before, after)
        extra[:0] = extra_pixels
        extents.append(n + sum(extra_pixels))
    geometry = (spec.stride, pads, spec.dilation, False, (0,) * len(pads), groups)
    form = torch.contiguous_format if not last else (
        torch.channels_last if len(x) == 4 else torch.channels_last_3d)
    return TorchCall(extra, (*x[:2], *extents), geometry, form)


def _with_pixels(tensor: Tensor, extra: list[int]) -> Tensor:
    """A tensor with zeros added before and after each axis, or pixels removed; last axis first."""
    for pads in [max(n, 0) for n in extra], [min(n, 0) for n in extra]:
        tensor = torch.constant_pad_nd(tensor, pads) if any(pads) else tensor
    return tensor


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
