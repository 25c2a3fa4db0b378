"""Layers that combine kernels, by the GPU backend's kernels on the CPU (see cuda_support) against
NumPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.network.layers import GroupNorm, Layer, Loss, MeanSquaredError
from tests.cuda_support import *  # noqa: F403
from tests.layer_cases import TESTED, cases
from tests.ops_support import at, boxes, close, make, parameters, random

CASES = cases(2)


def results(layer: Layer, inputs: list[np.ndarray], own: Any, dy: np.ndarray,
            backend: Any) -> list[Any]:
    """Everything that a layer computes on a block."""
    x = inputs[0]
    p = parameters(layer, x.shape[1:], x.dtype, own[1])
    moments = (own[0], (0, layer.statistics_groups(x.shape[1])), (0, 2))
    op = make(layer, len(x), inputs, own, dy, p=p, backend=backend,
              moments=moments if layer.statistics == "sample" else ())
    if layer.statistics == "batch":
        p.buffers = np.stack([np.zeros(x.shape[1]), np.ones(x.shape[1])])
    if isinstance(layer, Loss):
        op.ctx.sums, op.ctx.scale, op.ctx.labels = np.zeros(2), 0.5, labels(layer, own, dy)
        op.ctx.counts = np.zeros((3, x.shape[1]), np.int64)
    if layer.statistics:
        op.statistics()
    op.forward()
    if isinstance(layer, Loss):
        return [op.ctx.sums, op.blocks.dx, op.ctx.counts.astype(float)]
    if layer.has_weights or layer.statistics:
        op.backward_weight()
    op.backward()
    gradients = [getattr(p, name, None) for name in ("dweight", "dbias")]
    return [op.blocks.y, *op.blocks.dxs, *(g for g in gradients if g is not None)]


def labels(layer: Layer, own: Any, scores: np.ndarray) -> np.ndarray:
    """Labels or targets of a block; some labels do not count."""
    if isinstance(layer, MeanSquaredError):
        return random(4, scores.shape, scores.dtype)[at(own)]
    return np.random.default_rng(3).integers(-1, 3, scores[:, 0].shape)[at((own[0], *own[2:]))]


@pytest.mark.parametrize("name", CASES)
def test_layers_compute_the_same_on_both_backends(name: str, backend: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    # copies to the device are CuPy's own, which is not here
    monkeypatch.setattr(backend, "to_device", lambda host, out: np.copyto(out, host))
    network = CASES[name].network()
    layer = network.by_name[TESTED]
    inputs = [random(i, (3, *shape), np.float64)
              for i, shape in enumerate(network.input_shapes(layer))]
    dy = random(9, (3, *network.shapes[TESTED]), np.float64)
    for own in boxes(dy.shape, (2, 1, *(2,) * (dy.ndim - 2))):
        for mine, numpys in zip(results(layer, inputs, own, dy, backend),
                                results(layer, inputs, own, dy, None), strict=True):
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
