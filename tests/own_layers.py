"""Two layers as a user would add them: a pointwise one, and a windowed one with weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from hpcpar.extend import (
    Activation,
    Array,
    Call,
    Context,
    Importer,
    Node,
    Operator,
    Relation,
    Same,
    Shape,
    Windowed,
    operator,
    reaches,
    reads_onnx,
    reads_torch,
)


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + exp(x)); its backward pass needs only the output."""

    kind: ClassVar[str] = "softplus"

    def torch(self, x: Any) -> Any:
        """The layer in PyTorch."""
        import torch

        return torch.nn.functional.softplus(x)


@operator(Softplus)
class SoftplusOp(Operator):
    """dx = dy (1 - exp(-y))."""

    def _forward(self) -> None:
        self.backend.xp.logaddexp(self.x, 0, out=self.y)

    def _backward(self) -> None:
        xp = self.backend.xp
        xp.multiply(self.dy, -xp.expm1(-self.y), out=self.dx)


@reads_onnx("Softplus")
def softplus(importer: Importer, node: Node) -> str:
    """Imports the layer from an ONNX file or from PyTorch."""
    return importer.add(Softplus, node)


@reads_torch("softplus")
def softplus_call(call: Call) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Translates PyTorch's operator to ONNX's."""
    return "Softplus", call.tensors("self"), {}


@dataclass(frozen=True)
class Blur(Windowed):
    """A weighted sum of each window of each channel, with trained weights and no bias."""

    kernel: Shape = (3,)
    stride: Shape = (1,)
    padding: Shape = (1,)
    kind: ClassVar[str] = "blur"
    has_weights: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        return (x[0], *self.image_out(x))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis in "nc" else self.window(axis)

    def weight_shape(self, x: Shape) -> Shape:
        return (x[0], *self.kernel)

    def forward_flops(self, x: Shape) -> float:
        return 2.0 * math.prod(self.output_shape(x)) * math.prod(self.kernel)

    def torch(self, x: Any, weight: Any, *_: Any) -> Any:
        """The layer in PyTorch."""
        import torch

        return torch.nn.functional.conv2d(x, weight[:, None], None, self.stride, self.padding,
                                          groups=x.shape[1])


@operator(Blur)
class BlurOp(Operator):
    """One product for each position in the window."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Blur)
        self.layer = ctx.layer
        self.inner, self.pads = reaches(ctx.layer.windows(), ctx.own, ctx.need, ctx.input_shape[1:])

    def _padded(self, x: Array) -> Array:
        return self.backend.xp.pad(x, ((0, 0), (0, 0), *self.pads))

    def _taps(self) -> Iterator[tuple[Any, Any]]:
        """Index of each weight, and of the inputs that it multiplies."""
        for offset in itertools.product(*map(range, self.layer.kernel)):
            yield (slice(None), *offset), (slice(None), slice(None), *(
                slice(first, first + (n - 1) * step + 1, step)
                for first, n, step in zip(offset, self.y.shape[2:], self.layer.stride,
                                          strict=True)))

    def _forward(self) -> None:
        x, w = self._padded(self.x[self.inner]), self.parameters.weight
        self.y[...] = sum(x[read] * w[weight][:, None, None] for weight, read in self._taps())

    def _backward(self) -> None:
        w = self.parameters.weight
        dx = self._padded(self.backend.xp.zeros_like(self.dx[self.inner]))
        for weight, read in self._taps():
            dx[read] += self.dy * w[weight][:, None, None]
        self.dx[...] = 0
        self.dx[self.inner] = dx[(..., *(slice(a, n - b) for (a, b), n in zip(
            self.pads, dx.shape[2:], strict=True)))]

    def _backward_weight(self) -> None:
        x = self._padded(self.x[self.inner])
        for weight, read in self._taps():
            self.parameters.dweight[weight] = (x[read] * self.dy).sum(axis=(0, 2, 3))
