"""A convolution of `Backend` as a call of PyTorch, on tensors of any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hpcpar.kernels.geometry import SHAPES, ConvSpec, Ints

_forward = torch.ops.aten.convolution.default
_backward = torch.ops.aten.convolution_backward.default


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

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """y; see `Backend.conv_forward`."""
        return _forward(self._padded(x), self._formed(w), bias, *self.geometry)

    def backward_data(self, dy: Tensor, w: Tensor) -> Tensor:
        """dx; see `Backend.conv_backward_data`."""
        # PyTorch reads only its shape
        x = torch.empty(self.shape, dtype=dy.dtype, device=dy.device, memory_format=self.form)
        dx, _, _ = _backward(self._formed(dy), x, self._formed(w), None, *self.geometry,
                             (True, False, False))
        return _with_pixels(dx, [-n for n in self.extra])

    def backward_weight(self, x: Tensor, dy: Tensor, w: Ints, with_bias: bool
                        ) -> tuple[Tensor, Tensor | None]:
        """dw of shape `w`, and dbias; see `Backend.conv_backward_weight`."""
        # PyTorch reads only the shape and the type of the weights
        weights = torch.empty(w, dtype=dy.dtype, device=dy.device, memory_format=self.form)
        _, dw, dbias = _backward(self._formed(dy), self._padded(x), weights, w[:1],
                                 *self.geometry, (False, True, with_bias))
        return dw, dbias

    def _formed(self, tensor: Tensor) -> Tensor:
        """A tensor as it is, or a copy in another form."""
        return tensor.contiguous(memory_format=self.form)

    def _padded(self, x: Tensor) -> Tensor:
        """The input with the extra pixels."""
        return _with_pixels(self._formed(x), self.extra)


@lru_cache(maxsize=SHAPES)
def torch_call(x: Ints, w: Ints, y: Ints, spec: ConvSpec, last: bool = False) -> TorchCall | None:
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
