"""Normalization of each sample on blocks, whole and cut by hand, against PyTorch (see
ops_support).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpcpar.network.layers import BatchNorm, GroupNorm, LayerNorm, SampleNorm
from hpcpar.plan.boxes import Box
from hpcpar.runtime.ops.base import Operator
from tests.ops_support import (
    DTYPES,
    boxes,
    close,
    gather,
    make,
    parameters,
    random,
    reference,
    torch,
)

F = torch.nn.functional
CUTS = [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 3, 1, 1, 1), (1, 4, 2, 1, 1), (2, 2, 2, 3, 1),
        (1, 8, 1, 1, 1), (7, 1, 5, 1, 1)]
SAMPLES = [(6,), (6, 4, 5), (6, 3, 2, 4)]


def function(layer: SampleNorm) -> Any:
    """PyTorch's function of input, weight and bias."""
    if isinstance(layer, LayerNorm):
        return lambda x, w=None, b=None: F.layer_norm(x, x.shape[1:], w, b, layer.eps)
    return lambda x, w=None, b=None: F.group_norm(x, layer.groups, w, b, layer.eps)


def moments_box(layer: SampleNorm, own: Box, channels: int) -> Box:
    """The own samples, and the groups of the own channels."""
    size = channels // layer.groups
    first, last = own[1]
    return own[0], (first // size, max(first // size, -(-last // size))), (0, 2)


def exchanged(ops: Sequence[Operator], name: str, step: str, groups: int) -> None:
    """Do a step on every block and add up its sums over blocks of the same samples and groups."""
    total = np.zeros((5, groups, 2))
    places = [tuple(slice(*i) for i in op.ctx.moments) for op in ops]
    for op, place in zip(ops, places, strict=True):
        getattr(op, step)()
        total[place] += getattr(op, name)
    for op, place in zip(ops, places, strict=True):
        getattr(op, name)[...] = total[place]



@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("layer", [
    GroupNorm("g", groups=3, eps=1e-4), GroupNorm("i", groups=6, affine=False),
    GroupNorm("one"), LayerNorm("l", eps=1e-4), LayerNorm("plain", affine=False)],
    ids=lambda layer: layer.name)
def test_normalization_of_each_sample(layer: SampleNorm, sample: tuple[int, ...],
                                      dtype: Any) -> None:
    if sample == (6,) and layer.groups == 6:
        pytest.skip("one value has no variance")
    x, dy = random(0, (5, *sample), dtype), random(9, (5, *sample), dtype)
    whole = parameters(layer, sample, np.float64, (0, 6)) if layer.affine else None
    more = [whole.weight, whole.bias] if layer.affine else []
    want, (dx, *gradients) = reference(function(layer), [x, *more], dy)
    for cuts in CUTS:
        ops = []
        for own in boxes(x.shape, cuts[: x.ndim]):
            p = parameters(layer, sample, dtype, own[1]) if layer.affine else None
            ops.append(make(layer, 5, [x], own, dy, p=p, moments=moments_box(layer, own, 6)))
        exchanged(ops, "moments", "statistics", layer.groups)
        for op in ops:
            op.forward()
        exchanged(ops, "moments_gradient", "backward_weight", layer.groups)
        for op in ops:
            op.backward()
        y, (got,) = gather(ops, [x], dy)
        close(y, want)
        close(got, dx)
        for name, gradient in zip(("dweight", "dbias"), gradients, strict=False):
            total = np.zeros(gradient.shape, dtype)
            for op in ops:
                total[slice(*op.ctx.own[1])] += getattr(op.ctx.parameters, name)
            close(total, gradient)


@pytest.mark.parametrize("layer", [GroupNorm("g", groups=3), LayerNorm("l")],
                         ids=lambda layer: layer.name)
def test_samples_may_lie_apart_in_memory(layer: SampleNorm) -> None:
    """Blocks that are parts of larger ones, by channels too."""
    sample = (6, 4, 5)
    x, dy = random(0, (5, *sample), np.float64), random(9, (5, *sample), np.float64)
    own: Box = ((0, 5), (0, 6), (0, 4), (0, 5))
    p = parameters(layer, sample, np.float64, (0, 6))
    op = make(layer, 5, [x], own, dy, p=p, moments=moments_box(layer, own, 6))
    for name in ("x", "y", "dy", "dx"):
        apart = np.full((5, 9, 7, 8), 9.0)[:, 2:8, 1:5, 1:6]
        apart[...] = getattr(op.blocks, name)
        if name in ("x", "dx"):
            getattr(op.blocks, f"{name}s")[0] = apart
        else:
            setattr(op.blocks, name, apart)
    for step in (op.statistics, op.forward, op.backward_weight, op.backward):
        step()
    want, (dx, dw, db) = reference(function(layer), [x, p.weight, p.bias], dy)
    for got, expected in ((op.blocks.y, want), (op.blocks.dx, dx), (p.dweight, dw), (p.dbias, db)):
        close(got, expected)


def test_a_recomputed_pass_keeps_the_statistics() -> None:
    """Their sums are not there again, and need not be."""
    layer, sample = GroupNorm("g", groups=2), (6, 4, 5)
    x = random(0, (5, *sample), np.float64)
    own: Box = ((0, 5), (0, 6), (0, 4), (0, 5))
    op = make(layer, 5, [x], own, x, p=parameters(layer, sample, np.float64, (0, 6)),
              moments=moments_box(layer, own, 6))
    op.statistics()
    op.forward()
    first = op.blocks.y.copy()
    op.moments[...], op.blocks.y[...], op.ctx.recomputes = 0, 0, True
    op.forward()
    np.testing.assert_array_equal(op.blocks.y, first)


@pytest.mark.parametrize("parts", [1, 2])
def test_batchnorm_without_weights(parts: int) -> None:
    """Running statistics are learned all the same, and used in evaluation."""
    x, dy = random(0, (5, 6, 4), np.float64), random(9, (5, 6, 4), np.float64)
    x, dy = x[..., None], dy[..., None]
    mean, variance = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    want, (dx,) = reference(lambda a: F.batch_norm(a, mean, variance, None, None, True), [x], dy)
    ops = []
    for own in boxes(x.shape, (parts, 1, 1, 1)):
        p = parameters(BatchNorm("b", affine=False), (6, 4, 1), np.float64, own[1])
        p.buffers = np.stack([np.zeros(6), np.ones(6)])
        ops.append(make(BatchNorm("b", affine=False), 5, [x], own, dy, p=p))
    for name, step, then in (("moments", "statistics", "forward"),
                             ("moments_gradient", "backward_weight", "backward")):
        for op in ops:
            getattr(op, step)()
        total = sum(getattr(op, name) for op in ops)
        for op in ops:
            getattr(op, name)[...] = total
            getattr(op, then)()
    y, (got,) = gather(ops, [x], dy)
    close(y, want)
    close(got, dx)
    want = F.batch_norm(torch.from_numpy(x), mean, variance, None, None, False)
    for op in ops:
        op.finish_weight()
        close(op.ctx.parameters.buffers, torch.stack([mean, variance]))
        op.ctx.training = False
        op.forward()
    close(gather(ops, [x], dy)[0], want)
