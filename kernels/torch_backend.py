"""The CPU backend with PyTorch's convolutions (oneDNN)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hpcpar.kernels.interface import Array, ConvSpec, Ints, Tick
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.kernels.numpy_conv import SHAPES

_forward = torch.ops.aten.convolution.default
_backward = torch.ops.aten.convolution_backward.default
#: glibc's numbers of two limits.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


class TorchBackend(NumpyBackend):
    """NumPy's kernels, but PyTorch's for convolutions of equal groups with kernels above 1 x 1,
    which NumPy multiplies in place.

    Both read and write the same arrays. A convolution of PyTorch's ticks once, at its end.
    """

    def __init__(self) -> None:
        super().__init__()
        keep_freed_memory()

    @property
    def versions(self) -> dict[str, str]:
        return {"convolutions": f"PyTorch {torch.__version__}"}

    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        call = _call(x.shape, w.shape, out.shape, spec)
        if call is None:
            super().conv_forward(x, w, bias, spec, out, tick)
            return
        y = _forward(call.extended(x), torch.from_numpy(w),
                     None if bias is None else torch.from_numpy(bias), *call.geometry)
        _store(y, out, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        call = _call(dx.shape, w.shape, dy.shape, spec)
        if call is None:
            super().conv_backward_data(dy, w, spec, dx, tick)
            return
        gradient = torch.from_numpy(dy)
        of_x = gradient.new_empty(1).expand(call.shape)  # its shape matters only
        wide, _, _ = _backward(gradient, of_x, torch.from_numpy(w), None, *call.geometry,
                               (True, False, False))
        _store(torch.constant_pad_nd(wide, [-n for n in call.extra]), dx, tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        call = _call(x.shape, dw.shape, dy.shape, spec)
        if call is None:
            super().conv_backward_weight(x, dy, spec, dw, dbias, tick)
            return
        _, weight, bias = _backward(torch.from_numpy(dy), call.extended(x), torch.from_numpy(dw),
                                    dw.shape[:1], *call.geometry, (False, True, dbias is not None))
        if dbias is not None:
            _store(bias, dbias)
        _store(weight, dw, tick)


@dataclass(frozen=True)
class TorchCall:
    """A convolution in PyTorch's terms.

    Attributes
    ----------
    extra : list of int
        Pixels added before and after each image axis, from the last axis on, or left out, if below
        0; PyTorch itself pads both sides alike.
    shape : tuple of int
        Of the input with these pixels.
    geometry : tuple
        Stride, padding, dilation, whether it is transposed, output padding, groups.
    """

    extra: list[int]
    shape: Ints
    geometry: tuple[Ints, list[int], Ints, bool, Ints, int]

    def extended(self, x: Array) -> Tensor:
        """The input with the pixels added."""
        own = torch.from_numpy(x)
        return torch.constant_pad_nd(own, self.extra) if any(self.extra) else own


@lru_cache(maxsize=SHAPES)
def _call(x: Ints, w: Ints, y: Ints, spec: ConvSpec) -> TorchCall | None:
    """How PyTorch computes a convolution of these shapes; None where NumPy does."""
    groups = max(1, len(spec.segments))
    ins, outs = x[1] // groups, y[1] // groups
    equal = all((s.in_start, s.in_stop, s.out_start, s.out_stop)
                == (g * ins, (g + 1) * ins, g * outs, (g + 1) * outs)
                for g, s in enumerate(spec.segments))
    if not spec.segments or 0 in (*x, *w, *y) or math.prod(w[2:]) == 1 or not equal or (
            x[1], y[1]) != (groups * ins, groups * outs):
        return None
    extra: list[int] = []
    pads, extents = [], []
    for axis, (before, _) in enumerate(spec.pads):
        n, stride = x[2 + axis], spec.stride[axis]
        reach = (y[2 + axis] - 1) * stride + spec.dilation[axis] * (w[2 + axis] - 1) + 1
        after = reach - n - before
        alike = after <= before and n + 2 * before - reach < stride
        pads.append(before if alike else 0)
        more = (0, 0) if alike else (before, after)
        extra[:0] = more
        extents.append(n + sum(more))
    geometry = (spec.stride, pads, spec.dilation, False, (0,) * len(pads), groups)
    return TorchCall(extra, (*x[:2], *extents), geometry)


def _store(found: Tensor, out: Array, tick: Tick | None = None) -> None:
    torch.from_numpy(out).copy_(found)
    if tick is not None:
        tick()


def keep_freed_memory() -> None:
    """Have glibc keep what is freed: PyTorch allocates each output anew, and memory from the system
    comes zeroed page by page, which takes a fifth of VGG-16's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_MMAP_MAX, 0)
