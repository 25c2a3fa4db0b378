"""Batch normalization and losses on blocks, whole and cut by hand, against PyTorch (see
ops_support).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpcpar.network.layers import (
    BatchNorm,
    DiceCrossEntropy,
    Layer,
    LogisticCrossEntropy,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.boxes import Box
from hpcpar.runtime.ops.base import Operator
from tests.ops_support import (
    DTYPES,
    at,
    boxes,
    close,
    gather,
    make,
    parameters,
    random,
    reference,
    torch,
)
from tests.reference_layers import loss as reference_loss

F = torch.nn.functional


# -- batch normalization ---------------------------------------------------------------------------
def batch_parameters(channels: tuple[int, int], dtype: Any) -> Any:
    p = parameters(BatchNorm("b"), (6,), dtype, channels)
    p.buffers = np.stack([np.zeros(channels[1] - channels[0]),
                          np.ones(channels[1] - channels[0])]).astype(dtype)
    return p


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts",
                         [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 4, 1, 1, 1), (2, 2, 2, 3, 1),
                          (7, 1, 1, 1, 1)])
@pytest.mark.parametrize("sample", [(6,), (6, 4, 5), (6, 3, 2, 4)])
def test_batchnorm_of_the_whole_batch(sample: tuple[int, ...], cuts: tuple[int, ...],
                                      dtype: Any) -> None:
    layer = BatchNorm("b", eps=1e-4, momentum=0.3)
    x, dy = random(0, (5, *sample), dtype), random(9, (5, *sample), dtype)
    p = batch_parameters((0, 6), np.float64)
    mean, variance = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    want, (dx, dw, db) = reference(lambda a, w,
                                   b: F.batch_norm(a, mean, variance, w, b, True, 0.3, 1e-4),
                                   [x, p.weight, p.bias], dy)
    ops = []
    for own in boxes(x.shape, cuts[: x.ndim]):
        ops.append(make(layer, 5, [x], own, dy, p=batch_parameters(own[1], dtype)))
    exchanged(ops, "moments", "statistics")
    for op in ops:
        op.forward()
    exchanged(ops, "moments_gradient", "backward_weight")
    for op in ops:
        op.backward()
        op.finish_weight()
        channels = slice(*op.ctx.own[1])
        close(op.ctx.parameters.dweight, dw[channels])
        close(op.ctx.parameters.dbias, db[channels])
        close(op.ctx.parameters.buffers, torch.stack([mean, variance])[:, channels])
    y, (got,) = gather(ops, [x], dy)
    close(y, want)
    close(got, dx)
    want = F.batch_norm(torch.from_numpy(x.astype(np.float64)), mean, variance,
                        *map(torch.from_numpy, (p.weight, p.bias)), False, 0, 1e-4)
    for op in ops:
        op.ctx.training = False
        op.forward()
    close(gather(ops, [x], dy)[0], want)


def exchanged(ops: Sequence[Operator], name: str, step: str) -> None:
    """Do a step on every block and add up its sums over blocks of the same channels."""
    for op in ops:
        getattr(op, step)()
    sums: dict[Any, np.ndarray] = {}
    for op in ops:
        sums[op.ctx.own[1]] = sums.get(op.ctx.own[1], 0) + getattr(op, name)
    for op in ops:
        getattr(op, name)[...] = sums[op.ctx.own[1]]


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_batchnorm_of_each_block(parts: int) -> None:
    """Local statistics: every block is a batch of its own; one without samples learns nothing and
    makes no NaN.
    """
    layer, sample = BatchNorm("b"), (6, 2, 3)
    x, dy = random(0, (5, *sample), np.float64), random(9, (5, *sample), np.float64)
    for own in boxes(x.shape, (parts, 1, 1, 1)):
        p = batch_parameters((0, 6), np.float64)
        op = make(layer, 5, [x], own, dy, p=p, local_statistics=True)
        for step in (op.statistics, op.forward, op.backward_weight, op.backward, op.finish_weight):
            step()
        if op.empty:
            close(p.grad, np.zeros(12))
            close(p.buffers, np.stack([np.zeros(6), np.ones(6)]))
            continue
        mean, variance = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
        want, (dx, dw, db) = reference(
            lambda a, w, b, m=mean, v=variance: F.batch_norm(a, m, v, w, b, True),
            [x[at(own)], p.weight, p.bias], dy[at(own)]
        )
        close(op.blocks.y, want)
        close(op.blocks.dx, dx)
        close(p.dweight, dw)
        close(p.dbias, db)
        close(p.buffers, torch.stack([mean, variance]))


def test_batchnorm_before_which_nothing_is_trained() -> None:
    """Without a backward step the gradients of weight and bias are there all the same."""
    x, dy = random(0, (5, 6), np.float64), random(9, (5, 6), np.float64)
    p = batch_parameters((0, 6), np.float64)
    op = make(BatchNorm("b"), 5, [x], ((0, 5), (0, 6)), dy, p=p)
    op.blocks.dxs = [None]
    for step in (op.statistics, op.forward, op.backward_weight, op.finish_weight, op.finish_weight):
        step()
    _, (_, dw, db) = reference(lambda a, w, b: F.batch_norm(a, None, None, w, b, True),
                               [x, p.weight, p.bias], dy)
    close(p.dweight, dw)
    close(p.dbias, db)


# -- losses ----------------------------------------------------------------------------------------
def loss_of(layer: Layer, x: np.ndarray, own: Box, labels: np.ndarray,
            scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(sums, dx) of a block."""
    sums = np.full(2, 9.0)
    op = make(layer, len(x), [x], own, x, scale=scale, labels=labels, sums=sums)
    op.forward()
    return sums, op.blocks.dx


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(1, 1), (2, 1), (2, 3), (1, 7)])
def test_mean_squared_error(cuts: tuple[int, ...], dtype: Any) -> None:
    x, targets = random(0, (5, 4), dtype), random(1, (5, 4), dtype)
    want, (dx,
           ) = reference(lambda a: F.mse_loss(a[:4],
                                              torch.from_numpy(targets[:4].astype(np.float64))),
                         [x])
    targets[4] = np.nan  # padding: of five samples four count
    total = np.zeros(2)
    for own in boxes(x.shape, cuts):
        sums, part = loss_of(MeanSquaredError("l"), x, own, targets[at(own)], 1 / 4)
        total += sums
        close(part, dx[at(own)])
    assert total == pytest.approx([float(want), 0], rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_classification(parts: int, dtype: Any) -> None:
    x, labels = random(0, (5, 4), dtype), np.array([1, 3, -1, 0, 2])
    counted = torch.from_numpy(np.flatnonzero(labels >= 0))
    targets = torch.from_numpy(labels)[counted]
    hits = int((x.argmax(1) == labels).sum())
    ones = F.one_hot(targets, 4).double()
    for layer, function, correct in (
        (SoftmaxCrossEntropy("l"), lambda a: F.cross_entropy(a[counted], targets), hits),
        (SoftmaxCrossEntropy("l", label_smoothing=0.2),
         lambda a: F.cross_entropy(a[counted], targets, label_smoothing=0.2), hits),
        (LogisticCrossEntropy("l"),
         lambda a: F.binary_cross_entropy_with_logits(a[counted], ones, reduction="sum") / 4, 0),
    ):
        want, (dx,) = reference(function, [x])
        total = np.zeros(2)
        for own in boxes(x.shape, (parts, 1)):
            sums, part = loss_of(layer, x, own, labels[slice(*own[0])], 1 / 4)
            total += sums
            close(part, dx[at(own)])
        assert total == pytest.approx([float(want), correct], rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 1, 3, 1), (1, 1, 9, 2), (5, 1, 1, 4)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dice_and_cross_entropy(smoothing: float, cuts: tuple[int, ...], dtype: Any) -> None:
    """Cut images sum their pixels; a sample and some pixels do not count."""
    x = random(0, (3, 4, 5, 6), dtype)
    labels = np.random.default_rng(1).integers(-1, 4, (3, 5, 6))
    labels[2] = -1
    layer = DiceCrossEntropy("l", label_smoothing=smoothing)
    want, (dx,) = reference(lambda a: reference_loss(layer, a, labels, 2), [x])
    blocks = boxes(x.shape, cuts)
    ops = [make(layer, 3, [x], own, x, moments=(own[0], own[1], (0, 2)), scale=1 / 2,
                labels=labels[at((own[0], *own[2:]))], sums=np.full(2, 9.0)) for own in blocks]
    sums: dict[Any, np.ndarray] = {}
    for op in ops:
        op.statistics()
        sums[op.ctx.own[0]] = sums.get(op.ctx.own[0], 0) + op.moments
    for op in ops:
        op.moments[...] = sums[op.ctx.own[0]]
        op.forward()
        close(op.blocks.dx, dx[at(op.ctx.own)])
    total = sum(op.ctx.sums for op in ops)
    hits = (x.argmax(axis=1) == labels).sum() / 30
    assert total == pytest.approx([float(want), hits], rel=1e-5)
