"""Helpers for tests of operators on blocks, with PyTorch in float64 as the reference.

Instead of communication, each block's operator gets the box that it needs from the whole input, and
its gradients are added to the whole gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.interface import Backend
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.layers import Layer, axes_of
from hpcpar.plan.boxes import Box, block, shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.build import build
from hpcpar.schedule.memory_plan.blocks import Blocks
from tests.unit.brute import within

torch = pytest.importorskip("torch", reason="PyTorch is the reference of these tests",
                            exc_type=ImportError)
DTYPES = (np.float64, np.float32)
TOLERANCE = {"float64": 1e-10, "float32": 2e-4}


def close(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    bound = TOLERANCE[got.dtype.name] * max(1.0, float(np.abs(want).max()) if want.size else 0.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def boxes(extents: Sequence[int], cuts: Sequence[int], granule: int = 1) -> list[Box]:
    """All blocks of a tensor whose axes are split into these numbers of parts, some empty.

    Parts of the channels (the second axis) consist of whole granules.
    """
    parts = [
        [block(extent, cut, i, granule if axis == 1 else 1) for i in range(cut)]
        for axis, (extent, cut) in enumerate(zip(extents, cuts, strict=True))
    ]
    return list(itertools.product(*parts))


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)


def parameters(layer: Layer, x: tuple[int, ...], dtype: Any, rows: tuple[int, int],
               columns: tuple[int, int] | None = None) -> Any:
    """The part of random weights in a block; the values do not depend on the split."""
    rng = np.random.default_rng(7)
    if not layer.has_weights:
        return SimpleNamespace()
    weight = rng.standard_normal(layer.weight_shape(x))
    bias = rng.standard_normal(layer.bias_shape(x)) if layer.bias_shape(x) else None
    part = weight[slice(*rows)] if columns is None else weight[slice(*rows), slice(*columns)]
    p = SimpleNamespace(weight=part.astype(dtype), bias=None if bias is None
                        else bias[slice(*rows)].astype(dtype))
    count = p.weight.size
    p.grad = np.full(count + (0 if bias is None else p.bias.size), 9, dtype)
    p.dweight, p.dbias = p.grad[:count].reshape(p.weight.shape), None if bias is None else p.grad[
        count:].reshape(p.bias.shape)
    return p


def make(layer: Layer, batch: int, inputs: Sequence[np.ndarray], own: Box, dy: np.ndarray,
         needs: tuple[Box, ...] | None = None, p: Any = None, backend: Backend | None = None,
         **more: Any) -> Operator:
    """An operator on new blocks. Its outputs are filled with a number that it must overwrite."""
    shapes = tuple(x.shape[1:] for x in inputs)
    if needs is None:
        names = axes_of(dy.shape[1:])
        needed = []
        for i, x in enumerate(inputs):
            box = []
            for name, extent in zip(axes_of(x.shape[1:]), x.shape, strict=True):
                relation = layer.relation(name, x.shape[1:], i)
                box.append(relation.needed(*own[names.index(name)], extent) if name in names
                           else (0, extent))
            needed.append(tuple(box))
        needs = tuple(needed)
    # Inputs have the strides of a part of a larger block.
    xs = [
        np.repeat(x[within(need, x.shape)], 2, axis=-1)[..., ::2]
        for x, need in zip(inputs, needs, strict=True)]
    blocks = Blocks(xs, [np.full(x.shape, 9, x.dtype) for x in xs],
                    y=np.full(shape(own), 9, dy.dtype), dy=dy[at(own)].copy())
    ctx = Context(backend or NumpyBackend(), layer, shapes, batch, needs, own, blocks, p,
                  lambda: None, 0, 1, **more)
    return build(ctx)


def gather(ops: Sequence[Operator], inputs: Sequence[np.ndarray],
           out: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The whole output and input gradients, assembled from the operators' blocks."""
    y, dxs = np.zeros_like(out), [np.zeros_like(x) for x in inputs]
    for op in ops:
        y[at(op.ctx.own)] = op.blocks.y
        for dx, need, part in zip(dxs, op.ctx.needs, op.blocks.dxs, strict=True):
            np.add.at(dx, within(need, dx.shape), part)
    return y, dxs


def reference(function: Callable[..., Any], arrays: Sequence[np.ndarray],
              dy: np.ndarray | None = None) -> tuple[Any, list[np.ndarray]]:
    """Output and gradients of a PyTorch function."""
    leaves = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in arrays]
    out = function(*leaves)
    out.backward(None if dy is None else torch.from_numpy(dy.astype(np.float64)))
    return out.detach().numpy(), [leaf.grad.numpy() for leaf in leaves]


def random(seed: int, extents: Sequence[int], dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(extents).astype(dtype)
