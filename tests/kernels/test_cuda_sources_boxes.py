"""The CUDA kernels on boxes, matrix products and updates, on the CPU (see cuda_support)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import DTYPES, check, check_row, make, make_row


@pytest.mark.parametrize("dtype", [*DTYPES, "int64"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 2, 4),
                                   (2, 0, 3)])
def test_boxes(backend: Any, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(4)
    for order in (range(len(shape)), reversed(range(len(shape)))):
        box = make(shape, dtype)
        box[...] = rng.integers(-9, 9, shape)
        turned = box.transpose(tuple(order))
        flat = np.empty(box.size, dtype)
        backend.pack(turned, flat)
        np.testing.assert_array_equal(flat, turned.ravel())
        more = np.arange(box.size).astype(dtype)
        expected = turned + more.reshape(turned.shape)
        backend.unpack_add(more, turned)
        np.testing.assert_array_equal(turned, expected)
        backend.unpack(more, turned)
        np.testing.assert_array_equal(turned.ravel(), more)
        check(box, box)


def test_merge_dims() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels.cupy_launch import merge_dims

    assert merge_dims((2, 3, 4), (12, 4, 1)) == ((1, 1, 1, 1, 24), ((0, 0, 0, 0, 1),))
    assert merge_dims((2, 3, 4), (24, 4, 1)) == ((1, 1, 1, 2, 12), ((0, 0, 0, 24, 1),))
    assert merge_dims((2, 1, 4), (4, 99, 1), (8, 0, 2)) == ((1, 1, 1, 1, 8),
                                                            ((0, 0, 0, 0, 1), (0, 0, 0, 0, 2)))
    assert merge_dims((2, 4), (4, 1), (5, 1)) == ((1, 1, 1, 2, 4),
                                                  ((0, 0, 0, 4, 1), (0, 0, 0, 5, 1)))
    assert merge_dims((), ()) == ((1,) * 5, ((0,) * 5,))
    with pytest.raises(ValueError, match="more than 5"):
        merge_dims((2,) * 6, (729, 243, 81, 27, 9, 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    x, out, dy, dx = (make((2, 3, 4, 5), dtype, rng) for _ in range(4))
    x[0, 0, 0, :2] = 0, np.nan
    backend.activation_forward("relu", (0.0, 0.0), x, out)
    check(out, np.maximum(x, 0), exact=True)
    dy[0, 0, 1, 0] = np.nan
    expected = np.where(out > 0, dy, 0)
    backend.activation_backward("relu", (0.0, 0.0), out, dy, dx)
    check(dx, expected, exact=True)
    backend.activation_backward("relu", (0.0, 0.0), out, dy, dy)
    check(dy, expected, exact=True)


def splitmix64(z: int) -> int:
    mask = 2**64 - 1
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("start", "shape", "extent"),
    [
        ((1, 2, 0, 3), (2, 2, 3, 2), (4, 5, 3, 6)),
        ((2, 3), (2, 5), (9, 8)),
        ((0,), (6,), (6,)),
        ((2**20, 7), (2, 3), (2**21, 2**20)),
        ((0, 0), (0, 3), (4, 4)),
    ],
)
def test_dropout_mask(backend: Any, start: tuple[int, ...], shape: tuple[int, ...],
                      extent: tuple[int, ...], dtype: str) -> None:
    key, rate = 0xFEDCBA9876543210, 0.4
    out = make(shape, dtype)
    backend.dropout_mask(key, start, shape, extent, rate, out)
    expected = np.zeros(shape, dtype)
    for place in np.ndindex(shape):
        index = 0
        for s, p, e in zip(start, place, extent, strict=True):
            index = index * e + s + p
        kept = (splitmix64((key + (1 + index) * 0x9E3779B97F4A7C15) % 2**64)
                >> 11) * 2.0**-53 >= rate
        expected[place] = 1 / (1 - rate) if kept else 0
    check(out, expected, exact=True)
    flat = np.empty(out.size, dtype)
    backend.dropout_mask(key, start, shape, extent, rate, flat)
    np.testing.assert_array_equal(flat, expected.ravel())
    turned = np.empty((2, out.size // 2), dtype).T
    backend.dropout_mask(key, start, shape, extent, rate, turned)
    np.testing.assert_array_equal(turned.ravel(), expected.ravel())
    backend.dropout_mask(key, start, shape, extent, 1.0, out)
    assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_and_update(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(8)
    a, b = make((4, 3), dtype, rng), make((5, 3), dtype, rng)
    for out in (make((4, 5), dtype), np.empty((4, 5), dtype)):
        backend.gemm(a, b, out, transpose_b=True)
        check(out, a @ b.T)
        backend.gemm(a.T, b.T, out, transpose_a=True)
        check(out, a @ b.T)
    backend.gemm(a[:, :0], b[:, :0], out, transpose_b=True)
    assert not out.any()
    y, bias, total = make((4, 5), dtype, rng), make((5,), dtype, rng), make((5,), dtype)
    expected = y + bias
    backend.add_bias(y, bias)
    check(y, expected, exact=True)
    backend.sum_samples(y, total)
    check(total, y.sum(axis=0))
    backend.sum_samples(y[:0], total)
    check(total, np.zeros(5))
    w, grad, velocity = (make((50,), dtype, rng) for _ in range(3))
    new = 0.9 * velocity - 0.1 * (grad + 0.01 * w)
    expected = w + new
    backend.sgd_update(w, grad, velocity, 0.1, 0.9, 0.01)
    check(velocity, new)
    check(w, expected)
    found = np.ones(3, np.int64)
    search = backend.nonfinite_search(grad, [velocity, w, w[:0]], found)
    for values, expected in ((grad, [0, 0, 0]), (w, [0, 0, 0]), (grad, [0, 1, 0])):
        search()
        assert found.tolist() == expected
        values[3] = np.nan if values is not w else np.inf


#: Elementwise kernels on arrays that need not be distinct, and how many they take.
ELEMENTWISE: dict[str, tuple[int, Callable[..., None]]] = {
    "forward": (2, lambda b, x, out: b.activation_forward("clip", (0.2, 0.6), x, out)),
    "forward in place": (1, lambda b, x: b.activation_forward("gelu", (1.0, 0.0), x, x)),
    "backward": (3, lambda b, kept, dy, dx: b.activation_backward("silu", (0.0, 0.0), kept, dy,
                                                                  dx)),
    "backward in place": (2, lambda b, kept, dy: b.activation_backward("gelu", (1.0, 0.0), kept, dy,
                                                                       dy)),
    "momentum": (3, lambda b, w, grad, velocity: b.sgd_update(w, grad, velocity, 0.1, 0.9, 0.01)),
    "no momentum": (2, lambda b, w, grad: b.sgd_update(w, grad, None, 0.1, 0.0, 0.01)),
    "adam": (4, lambda b, w, grad, first, second: b.adam_update(w, grad, first, second, 0.1, 0.9,
                                                                0.99, 1e-8, 3, 0.01)),
}
#: Sizes below, at and off multiples of a vector; the last ones make every thread loop.
SIZES = [0, 1, 3, 4, 66, 131]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("items", SIZES)
@pytest.mark.parametrize("kernel", ELEMENTWISE)
def test_contiguous_arrays_get_what_strided_ones_get(backend: Any, kernel: str, items: int,
                                                     dtype: str) -> None:
    rng = np.random.default_rng(6)
    count, apply = ELEMENTWISE[kernel]
    expected = [rng.random(2 * items).astype(dtype)[::2] for _ in range(count)]
    # All arrays aligned, none, or all but the last.
    for offsets in ([0] * count, [1] * count, [0] * (count - 1) + [1]):
        rows = [make_row(values, offset)
                for values, offset in zip(expected, offsets, strict=True)]
        strided = [np.repeat(values, 2)[::2] for values in expected]
        apply(backend, *strided)
        apply(backend, *rows)
        for row, values in zip(rows, strided, strict=True):
            check_row(row, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("items", SIZES)
@pytest.mark.parametrize("offsets", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_messages_of_contiguous_boxes(backend: Any, offsets: tuple[int, int], items: int,
                                      dtype: str) -> None:
    values, more = np.random.default_rng(7).random((2, items)).astype(dtype)
    box, flat = make_row(values, offsets[0]), make_row(more, offsets[1])
    backend.unpack_add(flat, box)
    check_row(box, values + more)
    backend.pack(box, flat)
    check_row(flat, values + more)
    flat[...] = more
    backend.unpack(flat, box)
    check_row(box, more)
