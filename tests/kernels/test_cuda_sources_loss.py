"""The CUDA losses against their definitions, on the CPU (see cuda_support)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import DTYPES, check, make
from tests.kernel_support import loss_sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("samples", "classes"), [(5, 3), (4, 37), (3, 8), (0, 4), (2, 1)])
def test_softmax(backend: Any, samples: int, classes: int, dtype: str) -> None:
    rng = np.random.default_rng(6)
    x, dx = make((samples, classes), dtype, rng), make((samples, classes), dtype)
    x *= 30
    labels = rng.integers(0, classes, 2 * samples)[::2]
    if samples > 2:
        labels[1] = -1
        x[2, :2] = x[2].max() + 1  # two equal maxima: the first counts
        labels[2] = 0
    shifted = x.astype(float) - x.max(axis=1, keepdims=True) if samples else x.astype(float)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    used = np.flatnonzero(labels >= 0)
    expected = np.zeros(x.shape)
    expected[used] = np.exp(logs[used])
    expected[used, labels[used]] -= 1
    loss, hits = loss_sums(backend, "softmax_cross_entropy", x, labels, 0.25, dx)
    assert loss == pytest.approx(-logs[used, labels[used]].sum(), rel=1e-5 if dtype == "float32"
                                 else 1e-12)
    assert hits == (x[used].argmax(axis=1) == labels[used]).sum()
    check(dx, 0.25 * expected)


def test_softmax_of_an_impossible_label_is_nan(backend: Any) -> None:
    x = np.ones((2, 3), np.float32)
    labels, dx = np.array([1, 3]), np.empty_like(x)
    assert np.isnan(loss_sums(backend, "softmax_cross_entropy", x, labels, 1.0, dx)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logistic(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(7)
    x, dx = make((5, 11), dtype, rng), make((5, 11), dtype)
    x *= 40
    labels = np.array([3, -1, 7, 13, 99])
    target = (labels[:, None] - 3 == np.arange(11)) * 1.0
    wide, used = x.astype(float), (labels >= 0)[:, None]
    losses = np.maximum(wide, 0) - wide * target + np.log1p(np.exp(-abs(wide)))
    loss, _ = loss_sums(backend, "logistic_cross_entropy", x, labels, 3, 0.5, dx)
    assert loss == pytest.approx((losses * used).sum(), rel=1e-5 if dtype == "float32" else 1e-12)
    check(dx, 0.5 * (1 / (1 + np.exp(-wide)) - target) * used)
    none = (x[:0], labels[:0], 3, 0.5, dx[:0])
    assert loss_sums(backend, "logistic_cross_entropy", *none)[0] == 0


