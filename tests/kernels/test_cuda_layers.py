"""Layers that combine kernels, by the GPU backend's kernels on the CPU (see cuda_support) against
NumPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.network.layers import (
    ConvTranspose2d,
    ConvTranspose3d,
    DiceCrossEntropy,
    GroupNorm,
    Layer,
    Loss,
    MeanSquaredError,
    Pad,
    SoftmaxCrossEntropy,
    Upsample,
)
from tests.cuda_support import *  # noqa: F403
from tests.ops_support import at, boxes, close, make, parameters, random

LAYERS: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "transposed": (ConvTranspose2d("t", out_channels=4, kernel=3, stride=2, padding=1, groups=2,
                                   output_padding=1), (4, 4, 3)),
    "transposed volumes": (ConvTranspose3d("t", out_channels=3, kernel=2, stride=2), (2, 3, 2, 3)),
    "upsample": (Upsample("u", scale=(2, 3), mode="linear"), (3, 4, 3)),
    "upsample volumes": (Upsample("u", scale=(2, 1, 2)), (2, 3, 2, 3)),
    "zeros": (Pad("p", begin=(1, 0), end=(2, 3)), (3, 4, 3)),
    "periodic": (Pad("p", begin=(1, 2), end=(2, 3), mode="periodic"), (3, 4, 3)),
    "softmax": (SoftmaxCrossEntropy("l"), (3, 4, 5)),
    "smoothed": (SoftmaxCrossEntropy("l", label_smoothing=0.1), (3, 4, 5)),
    "dice": (DiceCrossEntropy("l"), (3, 4, 5)),
    "squares": (MeanSquaredError("l"), (2, 3, 4, 2)),
}


def results(layer: Layer, x: np.ndarray, own: Any, dy: np.ndarray, backend: Any) -> list[Any]:
    """Everything that a layer computes on a block."""
    p = parameters(layer, x.shape[1:], x.dtype, own[1]) if layer.has_weights else None
    op = make(layer, len(x), [x], own, dy, p=p, backend=backend,
              moments=(own[0], own[1], (0, 2)) if layer.statistics else ())
    if isinstance(layer, Loss):
        rng = np.random.default_rng(3)
        op.ctx.sums, op.ctx.scale = np.zeros(2), 0.5
        truth = rng.integers(-1, 3, dy[:, 0].shape)
        if isinstance(layer, MeanSquaredError):
            truth = random(4, dy.shape, x.dtype)[at(own)]
        op.ctx.counts = np.zeros((3, x.shape[1]), np.int64)
        op.ctx.labels = truth if truth.ndim == dy.ndim else truth[at((own[0], *own[2:]))]
        if layer.statistics:
            op.statistics()
        op.forward()
        return [op.ctx.sums, op.blocks.dx, op.ctx.counts.astype(float)]
    op.forward()
    op.backward()
    if p is None:
        return [op.blocks.y, op.blocks.dx]
    op.backward_weight()
    return [op.blocks.y, op.blocks.dx, p.dweight, p.dbias]


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_compute_the_same_on_both_backends(kind: str, backend: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    # copies to the device are CuPy's own, which is not here
    monkeypatch.setattr(backend, "to_device", lambda host, out: np.copyto(out, host))
    layer, sample = LAYERS[kind]
    x = random(0, (3, *sample), np.float64)
    dy = random(1, (3, *layer.output_shape(sample)), np.float64)
    for own in boxes(dy.shape, (2, 1, *(2,) * (dy.ndim - 2))):
        for mine, numpys in zip(results(layer, x, own, dy, backend),
                                results(layer, x, own, dy, None), strict=True):
            close(mine, numpys)


@pytest.mark.parametrize("channels", [(0, 2), (4, 5)])
def test_group_norm_of_some_channels(channels: tuple[int, int], backend: Any) -> None:
    """Also of a single one, whose numbers of all samples would have gaps between them."""
    x, dy = (random(seed, (5, 6, 3, 4), np.float64) for seed in (0, 1))
    own, found = ((0, 5), channels, (0, 3), (0, 4)), []
    for each in backend, None:
        p = parameters(GroupNorm("g", groups=3), (6, 3, 4), np.float64, channels)
        op = make(GroupNorm("g", groups=3), 5, [x], own, dy, p=p, backend=each,
                  moments=((0, 5), (0, 3), (0, 2)))
        for step in (op.statistics, op.forward, op.backward_weight, op.backward):
            step()
        found.append((op.blocks.y, op.blocks.dx, p.dweight, p.dbias))
    for mine, numpys in zip(*found, strict=True):
        close(mine, numpys)
