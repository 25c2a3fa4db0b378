"""Kernels on bfloat16 arrays: the GPU's against the CPU's, which round each result once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels import bfloat16
from hpcpar.kernels.bfloat16 import BFLOAT16, widened, widening
from hpcpar.kernels.geometry import ConvSpec, PoolSpec, Segment
from hpcpar.kernels.interface import ACTIVATIONS
from hpcpar.kernels.numpy_backend import NumpyBackend
from tests.kernel_support import fetch

#: Sums in another order may round to the other neighbor.
ROUNDING = 2.0**-8
SHAPE = (3, 5, 7, 11)


class Arrays:
    """The same random arrays on any backend, in the order they are asked for."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.rng = widening(backend, "bfloat16"), np.random.default_rng(12)

    def place(self, host: np.ndarray) -> Any:
        array = self.backend.empty(host.shape, host.dtype)
        self.backend.to_device(host, array)
        return array

    def random(self, *shape: int, dtype: Any = BFLOAT16) -> Any:
        return self.place(self.rng.standard_normal(shape).astype(dtype))

    def box(self) -> Any:
        """A box of SHAPE in a larger array."""
        return self.random(4, 5, 8, 14)[:3, :, 1:, 2:13]


#: A call of a kernel; the arrays that it writes.
Run = Callable[[Any, Arrays], list[Any]]


def moves(b: Any, a: Arrays) -> list[Any]:
    box, flat, other = a.box(), a.random(math.prod(SHAPE)), a.box()
    packed, wide = a.random(flat.size), a.random(*SHAPE, dtype=np.float32)
    b.pack(box, packed)
    b.unpack_add(flat, box)
    b.unpack(flat, other)
    widened_box, rounded = a.random(*SHAPE, dtype=np.float32), a.box()
    b.copy(box, widened_box)
    b.copy(wide, rounded)
    total = a.box()
    b.accumulate(rounded, total)
    return [box, packed, other, widened_box, rounded, total]


def sums(b: Any, a: Arrays) -> list[Any]:
    x, y, out, bias = a.box(), a.box(), a.box(), a.random(5)
    b.add(x, y, out)
    b.add_bias(y, bias)
    total = a.random(5, dtype=np.float32)
    b.sum_samples(x, total)
    product = a.box()
    b.multiply(x, y, product)
    return [out, y, total, product]


def mask(b: Any, a: Arrays) -> list[Any]:
    out = a.random(*SHAPE)
    b.dropout_mask(2**63 + 5, (0, 1, 0, 2), SHAPE, (9, 9, 9, 14), 0.3, out)
    return [out]


def activation(name: str) -> Run:
    def run(b: Any, a: Arrays) -> list[Any]:
        x, out, dy, dx = a.box(), a.box(), a.box(), a.box()
        b.activation_forward(name, (0.2, 0.9), x, out)
        kept = x if name in ("silu", "gelu", "mish") else out
        b.activation_backward(name, (0.2, 0.9), kept, dy, dx)
        return [out, dx]

    return run


def batchnorm(b: Any, a: Arrays) -> list[Any]:
    x, dy, out, dx = a.box(), a.box(), a.box(), a.box()
    w, bias = a.random(5, dtype=np.float32), a.random(5, dtype=np.float32)
    moments, gradients, products = (a.random(5, 2, dtype=np.float64) for _ in range(3))
    mean, inv_std = a.random(5, dtype=np.float64), a.random(5, dtype=np.float64)
    b.channel_moments(x, moments)
    b.batchnorm_statistics(moments, x.size // 5, 1e-5, mean, inv_std, None, 0.1)
    b.batchnorm_forward(x, mean, inv_std, w, bias, out)
    b.channel_moments_backward(x, dy, mean, inv_std, gradients)
    b.batchnorm_gradients(gradients, w, products, None, None)
    b.batchnorm_backward(x, dy, mean, inv_std, w, products, x.size // 5, dx)
    return [moments, out, gradients, dx]


def pools(b: Any, a: Arrays) -> list[Any]:
    spec = PoolSpec((3, 3), (2, 2), ((1, 1), (1, 1)))
    x, dx, mean_dx = a.box(), a.box(), a.box()
    out, dy, mean = (a.random(3, 5, 4, 6) for _ in range(3))
    argmax = a.place(np.zeros((3, 5, 4, 6), np.int16))
    scales = [a.random(4, dtype=np.float32), a.random(6, dtype=np.float32)]
    b.maxpool_forward(x, spec, out, argmax)
    b.maxpool_backward(dy, argmax, spec, dx)
    b.avgpool_forward(x, spec, scales, mean)
    b.avgpool_backward(dy, spec, scales, mean_dx)
    whole, whole_dx = a.random(3, 5), a.box()
    b.global_avgpool_forward(x, whole)
    b.global_avgpool_backward(whole, whole_dx)
    return [out, argmax, dx, mean, mean_dx, whole, whole_dx]


def lrn(b: Any, a: Arrays) -> list[Any]:
    x, out, scale, dy, dx = (a.box() for _ in range(5))
    b.lrn_forward(x, 0, 3, 0.5, 0.75, 2.0, out, scale)
    b.lrn_backward(x, out, scale, dy, 0, 3, 0.5, 0.75, dx)
    return [out, scale, dx]


def products(b: Any, a: Arrays) -> list[Any]:
    x, w, y = a.random(6, 16), a.random(24, 16), a.random(6, 24)
    dw, dx = a.random(24, 16, dtype=np.float32), a.random(6, 16)
    b.gemm(x, w, y, transpose_b=True)
    b.gemm(y, x, dw, transpose_a=True)
    b.gemm(y, w, dx)
    return [y, dw, dx]


def convolution(b: Any, a: Arrays) -> list[Any]:
    spec = ConvSpec((2, 1), (1, 1), ((1, 1), (1, 0)), (Segment(0, 2, 0, 4), Segment(2, 4, 4, 8)))
    x, w, bias = a.random(3, 4, 9, 8), a.random(8, 2, 3, 2), a.random(8)
    y, dy, dx = a.random(3, 8, 5, 8), a.random(3, 8, 5, 8), a.random(3, 4, 9, 8)
    dw, dbias = a.random(8, 2, 3, 2, dtype=np.float32), a.random(8, dtype=np.float32)
    b.conv_forward(x, w, bias, spec, y, None)
    b.conv_backward_data(dy, w, spec, dx, None)
    b.conv_backward_weight(x, dy, spec, dw, dbias, None)
    return [y, dx, dw, dbias]


RUNS: dict[str, Run] = {
    "moves": moves, "sums": sums, "mask": mask, "batch normalization": batchnorm, "pools": pools,
    "lrn": lrn, "products": products, "convolution": convolution,
    **{name: activation(name) for name in ACTIVATIONS}}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_kernels_agree_to_one_rounding(run: Run, gpu: Any) -> None:
    found, expected = (run(a.backend, a) for a in map(Arrays, (gpu, NumpyBackend())))
    for one, other in zip(found, expected, strict=True):
        got, want = (fetch(array).astype(np.float64) for array in (one, other))
        assert one.dtype == other.dtype and np.isfinite(want).all()
        largest = max(np.abs(want).max(), 1e-3)
        np.testing.assert_allclose(got, want, rtol=ROUNDING, atol=ROUNDING * largest)


def test_cudnn_convolves_without_float32_copies(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpu.convolutions.startswith("cudnn"):
        pytest.skip("cuDNN is not installed")

    def refuse(backend: Any, array: Any) -> None:
        raise AssertionError(f"a float32 copy of {array.shape}")

    monkeypatch.setattr(bfloat16, "widened", refuse)
    arrays = Arrays(gpu)
    convolution(arrays.backend, arrays)


def test_a_number_is_rounded_to_the_nearest_even_one(gpu: Any) -> None:
    """As ml_dtypes does, for the numbers halfway, the smallest, the largest, and NaN."""
    halfway = np.arange(2**16, dtype=np.uint32) << 16 | 0x8000
    bits = np.concatenate([halfway - 1, halfway, halfway + 1, halfway & 0xFFFF0000])
    host = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = host.astype(BFLOAT16)
    given = gpu.empty(host.shape, np.float32)
    gpu.to_device(host, given)
    rounded = gpu.empty(host.shape, BFLOAT16)
    gpu.copy(given, rounded)
    found = fetch(rounded)
    a_number = ~np.isnan(host)
    np.testing.assert_array_equal(found.view(np.uint16)[a_number],
                                  expected.view(np.uint16)[a_number])
    assert np.isnan(found[~a_number].astype(np.float32)).all()
    np.testing.assert_array_equal(fetch(widened(gpu, rounded)), found.astype(np.float32))


def test_a_layer_that_is_not_finite_is_found(gpu: Any) -> None:
    host = np.ones(SHAPE, BFLOAT16)
    host[2, 1, 0, 3] = np.nan
    whole, broken = gpu.empty(SHAPE, BFLOAT16), gpu.empty(SHAPE, BFLOAT16)
    gpu.to_device(np.ones(SHAPE, BFLOAT16), whole)
    gpu.to_device(host, broken)
    found = gpu.zeros((2,), np.int64)
    gpu.nonfinite_search(broken, [whole, broken], found)()
    assert fetch(found).tolist() == [0, 1]
