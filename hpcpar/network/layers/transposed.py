"""Transposed convolutions: the adjoints of convolutions, which enlarge images."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape
from hpcpar.network.layers.matmul import Conv
from hpcpar.network.receptive_field import Relation, Transposed


@dataclass(frozen=True)
class ConvTranspose(Conv):
    """Transposed convolution of images or volumes, as in PyTorch.

    Its forward pass is the data gradient of a convolution from its outputs to its inputs. Weights
    are ``[out, in / groups, ...]``; PyTorch's are ``[in, out / groups, ...]``.

    Attributes
    ----------
    output_padding : tuple of int
        Outputs added after the last one that an input reaches; less than the stride or dilation.
    """

    output_padding: Shape = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_per_axis("output_padding")
        limits = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(extra >= max(stride, dilation) for extra, stride, dilation in limits):
            raise InputError(
                f"layer '{self.name}' ({self.kind}): output_padding {self.output_padding} must be "
                f"less than stride {self.stride} or dilation {self.dilation}")

    def exchanged(self, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        channels, per_group, *kernel = weight.shape
        groups = weight.reshape(self.groups, channels // self.groups, per_group, *kernel)
        return groups.swapaxes(1, 2).reshape(self.groups * per_group, -1, *kernel)

    def fields(self) -> tuple[Transposed, ...]:
        """Receptive fields of the image axes in order: (h, w) or (d, h, w)."""
        return tuple(Transposed(*astuple(window)) for window in self.windows())

    def image_out(self, x: Shape, ceil_mode: bool = False) -> Shape:
        extents = tuple(
            (size - 1) * win.stride - 2 * win.padding + win.span + extra for size, win, extra
            in zip(x[1:], self.windows(), self.output_padding, strict=True))
        if min(extents) < 1:
            raise InputError(f"layer '{self.name}' ({self.kind}): an input {x} gives an image "
                             f"{extents}; use larger images or less padding")
        return extents

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis in "nc":
            return super().relation(axis, x, which)
        return Transposed(*astuple(self.window(axis)))

    def forward_flops(self, x: Shape) -> float:
        return 2.0 * math.prod(x[1:]) * math.prod(self.weight_shape(x))


@dataclass(frozen=True)
class ConvTranspose2d(ConvTranspose):
    """Transposed convolution of images ``(C, H, W)``."""

    kind: ClassVar[str] = "convtranspose2d"


@dataclass(frozen=True)
class ConvTranspose3d(ConvTranspose):
    """Transposed convolution of volumes ``(C, D, H, W)``."""

    kind: ClassVar[str] = "convtranspose3d"
    dimensions: ClassVar[int] = 3
