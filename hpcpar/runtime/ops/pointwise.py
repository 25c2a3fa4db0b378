"""Activation functions, formulas, dropout and flatten on a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from hpcpar.kernels.interface import Array, Bound
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS
from hpcpar.network.layers import Activation, Dropout, Flatten, Pointwise
from hpcpar.network.layers.elementwise_table import TABLE
from hpcpar.network.layers.formula import Argument, Steps
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.steps import Compute, Op


@operator(Activation)
class ActivationOp(Operator):
    """y = f(x), in place where x and y share memory."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Activation)
        self.layer = ctx.layer

    def calls(self, step: Compute) -> Sequence[Bound]:
        return (self._forward,) if step.op is Op.FORWARD else (self._backward,)

    @cached_property
    def _forward(self) -> Bound:
        f = self.layer
        return self.backend.bind("activation_forward", f.kind, f.numbers, self.x, self.y)

    @cached_property
    def _backward(self) -> Bound:
        f = self.layer
        kept = self.x if "input" in f.backward_reads else self.y
        return self.backend.bind("activation_backward", f.kind, f.numbers, kept, self.dy, self.dx)


#: Items of a piece on a GPU; they bound the memory of a formula's intermediate results.
_GPU_ITEMS = 1 << 22


@operator(Pointwise)
class PointwiseOp(Operator):
    """A formula in pieces of the block, on a CPU of a size that stays in the cache."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Pointwise)
        self.layer = ctx.layer
        self._piece_items = 4 * BLOCK_ITEMS if ctx.backend.xp is np else _GPU_ITEMS

    def _forward(self) -> None:
        last = f"t{len(self.layer.steps) - 1}"
        for piece, names in self._pieces():
            self.y[piece] = self._values(self.layer.steps, (last,), names)[0]

    def _backward(self) -> None:
        steps, gradients = self.layer.input_gradients
        wanted = [(dx, g) for dx, g in zip(self.blocks.dxs, gradients, strict=True)
                  if dx is not None]
        for piece, names in self._pieces():
            names["g"] = self.dy[piece]
            found = self._values(steps, [g for _, g in wanted], names)
            for (dx, _), gradient in zip(wanted, found, strict=True):
                dx[piece] = gradient

    def _backward_weight(self) -> None:
        steps, gradients = self.layer.parameter_gradient
        self.parameters.grad[...] = 0
        total = self._along(self.parameters.dweight)
        for piece, names in self._pieces():
            names["g"] = self.dy[piece]
            part = total[_within(piece, total)]
            (found,) = self._values(steps, gradients, names)
            summed = tuple(axis for axis, extent in enumerate(part.shape) if extent == 1)
            if not isinstance(found, float):  # 0.0 behind a step without a derivative
                part += found.sum(axis=summed, keepdims=True)

    def _along(self, weights: Array) -> Array:
        """The block's part of the parameter or its gradient, with as many axes as the block."""
        rows = weights.reshape(len(weights), *weights.shape[1:], *(1,) * (
            self.y.ndim - 1 - weights.ndim))
        box = (slice(None) if extent == 1 else slice(*interval)
               for extent, interval in zip(rows.shape[1:], self.ctx.own[2:], strict=True))
        place = (None, slice(None), *box)
        return rows[place]

    def _pieces(self) -> Iterator[tuple[tuple[slice, ...], dict[Argument, Array]]]:
        """Places in the block, and the inputs and the parameter there, by name."""
        given = {f"x{i}": x for i, x in enumerate(self.blocks.xs) if x is not None}
        if self.layer.parameter:
            given["w"] = self._along(self.parameters.weight)
        for piece in _boxes(self.y.shape, self._piece_items):
            yield piece, {name: a[_within(piece, a)] for name, a in given.items()}

    def _values(self, steps: Steps, results: Sequence[Argument],
                names: dict[Argument, Array]) -> list[Array | float]:
        """The results of a formula; each step's value is kept until its last use."""
        last = {a: number for number, (_, *arguments) in enumerate(steps) for a in arguments}
        kind, kept = self.y.dtype, {*results}
        for number, (op, *arguments) in enumerate(steps):
            value = TABLE[str(op)].compute(self.backend, *(names.get(a, a) for a in arguments))
            names[f"t{number}"] = value.astype(kind) if value.dtype.kind == "b" else value
            for a in arguments:
                if last[a] == number and a not in kept:
                    names.pop(a, None)
        return [names.get(result, result) for result in results]


def _within(piece: tuple[slice, ...], array: Array) -> tuple[slice, ...]:
    """A place in an array that is repeated along axes with the extent 1."""
    return tuple(slice(None) if extent == 1 else where
                 for where, extent in zip(piece, array.shape, strict=True))


def _boxes(extents: Sequence[int], items: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `items` items that make up an array, split along the leading axes."""
    if not extents:
        yield ()
        return
    inner = max(1, int(np.prod(extents[1:], dtype=np.int64)))
    count = max(1, items // inner)
    for start in range(0, extents[0], count):
        for box in _boxes(extents[1:], items):
            yield (slice(start, start + count), *box)


@operator(Dropout)
class DropoutOp(Operator):
    """Inverted dropout; the mask depends only on seed, iteration, layer and global index."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Dropout)
        self.layer = ctx.layer
        #: Number of leading axes with independent decisions: samples, samples and channels, or all.
        self.axes = {"sample": 1, "channel": 2, "value": len(ctx.own)}[self.layer.unit]
        self.mask = ctx.backend.empty(shape(ctx.own[:self.axes]), self.y.dtype)

    def _forward(self) -> None:
        ctx = self.ctx
        if not ctx.training:
            self._move(self.x, self.y)
            return
        start = tuple(lo for lo, _ in ctx.own[:self.axes])
        extent = (ctx.batch, *ctx.input_shape)[:self.axes]
        key = ctx.key(lambda step: mask_key(ctx.seed, step, ctx.position))
        self.backend.dropout_mask(key, start, self.mask.shape, extent, self.layer.rate, self.mask)
        self.backend.multiply(self.x, self._factor(), self.y)

    def _backward(self) -> None:
        if self.ctx.training:
            self.backend.multiply(self.dy, self._factor(), self.dx)
        else:
            self._move(self.dy, self.dx)

    def _factor(self) -> Array:
        return self.mask.reshape(self.mask.shape + (1,) * (self.y.ndim - self.axes))


def mask_key(seed: int, step: int, position: int) -> int:
    """A 64-bit key for one layer's mask in one iteration; large odd factors spread keys."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + (position + 1)
            * 0x94D049BB133111EB) % 2**64


@operator(Flatten)
class FlattenOp(Operator):
    """A change of shape; copies only where x and y do not share memory."""

    takes_bfloat16 = True

    def _forward(self) -> None:
        self._move(self.x.reshape(self.y.shape), self.y)

    def _backward(self) -> None:
        self._move(self.dy.reshape(self.dx.shape), self.dx)
