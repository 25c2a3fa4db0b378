"""The GPU's kernels on a GPU: the cases of every backend, against the CPU's backend, and against
themselves bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.geometry import ConvSpec, PoolSpec, Segment
from hpcpar.kernels.numpy_backend import NumpyBackend
from tests.kernel_cases import *  # noqa: F403

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}


@pytest.fixture(scope="module", params=["usual-blocks", "small-blocks"])
def backend(request: pytest.FixtureRequest, gpu: Any) -> Any:
    """The backend of the common cases; once with a convolution's images one by one."""
    return type(gpu)(scratch_bytes=1) if request.param == "small-blocks" else gpu


#: A kernel call on some backend: the arrays it writes, from the arrays made by `Arrays`.
Run = Callable[[Any, "Arrays"], list[Any]]


class Arrays:
    """The same random arrays on any backend, in the order they are asked for."""

    def __init__(self, backend: Any, dtype: str) -> None:
        self.backend = backend
        self.dtype = dtype
        self.rng = np.random.default_rng(11)

    def random(self, *shape: int) -> Any:
        array = self.backend.empty(shape, self.dtype)
        self.backend.to_device(self.rng.standard_normal(shape).astype(self.dtype), array)
        return array

    def labels(self, samples: int, classes: int) -> Any:
        array = self.backend.empty((samples,), np.int64)
        self.backend.to_device(self.rng.integers(-1, classes, samples), array)
        return array

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.backend.empty(shape, dtype or self.dtype)


def conv(
    images: int, channels: int, side: int, outputs: int, kernel: int, stride: int, pad: int,
    groups: int, axes: int = 2
) -> Run:
    out_side = (side + 2 * pad - kernel) // stride + 1
    ins, outs = channels // groups, outputs // groups
    segments = tuple(Segment(g * ins, g * ins + ins, g * outs, g * outs + outs)
                     for g in range(groups))
    spec = ConvSpec((stride,) * axes, (1,) * axes, ((pad, pad),) * axes, segments)

    def run(backend: Any, arrays: Arrays) -> list[Any]:
        x = arrays.random(images, channels, *(side,) * axes)
        w = arrays.random(outputs, ins, *(kernel,) * axes)
        bias = arrays.random(outputs)
        dy = arrays.random(images, outputs, *(out_side,) * axes)
        out, dx, dw, dbias = arrays.empty(*dy.shape), arrays.empty(*x.shape), arrays.empty(
            *w.shape), arrays.empty(outputs)
        backend.conv_forward(x, w, bias, spec, out)
        backend.conv_backward_data(dy, w, spec, dx)
        backend.conv_backward_weight(x, dy, spec, dw, dbias)
        return [out, dx, dw, dbias]

    return run


def pools(spec: PoolSpec, image: tuple[int, ...], pooled: tuple[int, ...]) -> Run:
    def run(backend: Any, arrays: Arrays) -> list[Any]:
        return pool(backend, arrays, spec, image, pooled)

    return run


def pool(backend: Any, arrays: Arrays, spec: PoolSpec, image: tuple[int, ...],
         pooled: tuple[int, ...]) -> list[Any]:
    x, dy = arrays.random(4, 16, *image), arrays.random(4, 16, *pooled)
    scales = [arrays.random(extent) for extent in pooled]
    whole, dx_whole = arrays.empty(4, 16), arrays.empty(*x.shape)
    backend.global_avgpool_forward(x, whole)
    backend.global_avgpool_backward(whole, dx_whole)
    out, argmax, dx = arrays.empty(*dy.shape), arrays.empty(*dy.shape,
                                                            dtype=np.int16), arrays.empty(*x.shape)
    mean, dx_mean = arrays.empty(*dy.shape), arrays.empty(*x.shape)
    backend.maxpool_forward(x, spec, out, argmax)
    backend.maxpool_backward(dy, argmax, spec, dx)
    backend.avgpool_forward(x, spec, scales, mean)
    backend.avgpool_backward(dy, spec, scales, dx_mean)
    return [out, argmax, dx, mean, dx_mean, whole, dx_whole]


def lrn(backend: Any, arrays: Arrays) -> list[Any]:
    x, dy = arrays.random(4, 36, 9, 8), arrays.random(4, 32, 9, 8)
    out, scale, dx = arrays.empty(*dy.shape), arrays.empty(*dy.shape), arrays.empty(*x.shape)
    backend.lrn_forward(x, 2, 5, 0.5, 0.75, 2.0, out, scale)
    backend.lrn_backward(x, out, scale, dy, 2, 5, 0.5, 0.75, dx)
    return [out, scale, dx]


def batchnorm(*shape: int) -> Run:
    def run(backend: Any, arrays: Arrays) -> list[Any]:
        channels, count = shape[1], shape[0] * math.prod(shape[2:])
        x, dy, w, b, running = (arrays.random(*s) for s in (shape, shape, (channels,), (channels,),
                                                            (2, channels)))
        mean, inv_std = (arrays.empty(channels, dtype=np.float64) for _ in range(2))
        moments, sums = (arrays.empty(channels, 2, dtype=np.float64) for _ in range(2))
        out, dx, dw, again = arrays.empty(*shape), arrays.empty(*shape), arrays.empty(
            channels), arrays.empty(*shape)
        backend.channel_moments(x, moments)
        backend.batchnorm_statistics(moments, count, 1e-5, mean, inv_std, running, 0.1)
        backend.batchnorm_forward(x, mean, inv_std, w, b, out)
        backend.channel_moments_backward(x, dy, mean, inv_std, sums)
        backend.batchnorm_backward(x, dy, mean, inv_std, w, sums, count, dx)
        backend.copy(sums[:, 1], dw)
        backend.multiply(running, running, running)
        backend.batchnorm_running(running, 1e-5, mean, inv_std)
        backend.batchnorm_forward(x, mean, inv_std, w, b, again)
        return [out, dx, dw, again, moments, sums]

    return run


def losses(backend: Any, arrays: Arrays) -> list[Any]:
    x, labels = arrays.random(64, 1000), arrays.labels(64, 1000)
    dx, dx_logistic, dx_squared = (arrays.empty(*x.shape) for _ in range(3))
    sums = [backend.zeros((2,), np.float64) for _ in range(3)]
    backend.softmax_cross_entropy(x, labels, 1 / 64, dx, sums[0])
    backend.logistic_cross_entropy(x, labels, 10, 1 / 64, dx_logistic, sums[1])
    backend.mean_squared_error(x, arrays.random(64, 1000), 1 / 64, dx_squared, sums[2])
    return [*sums, dx, dx_logistic, dx_squared]


def matrices(backend: Any, arrays: Arrays) -> list[Any]:
    a, b, bias = arrays.random(64, 300), arrays.random(200, 300), arrays.random(200)
    y, total = arrays.empty(64, 200), arrays.empty(200)
    backend.gemm(a, b, y, transpose_b=True)
    backend.add_bias(y, bias)
    backend.sum_samples(y, total)
    return [y, total]


def elementwise(backend: Any, arrays: Arrays) -> list[Any]:
    x, dy, w, grad = arrays.random(8, 6, 5, 4), arrays.random(8, 6, 5,
                                                              4), arrays.random(999), arrays.random(
        999)
    velocity, out, dx, mask = arrays.random(999), arrays.empty(*x.shape), arrays.empty(
        *x.shape), arrays.empty(*x.shape)
    backend.activation_forward("relu", (0.0, 0.0), x, out)
    backend.activation_backward("relu", (0.0, 0.0), out, dy, dx)
    backend.dropout_mask(2**64 - 3, (1, 2, 3, 4), x.shape, (10, 20, 30, 40), 0.5, mask)
    backend.multiply(dx, mask, dx)
    backend.add(dx, x, x)
    backend.accumulate(dx, x)
    backend.scale(x, 0.3)
    backend.sgd_update(w, grad, velocity, 0.01, 0.9, 0.0005)
    backend.sgd_update(w, grad, None, 0.01, 0.0, 0.0005)
    matrix, first, second = (arrays.random(20, 30) for _ in range(3))
    backend.multiply(second, second, second)
    # A shard of a weight matrix
    part = (slice(None), slice(4, 11))
    backend.adam_update(matrix[part], dy.reshape(48, 20)[:20, 3:10], first[part], second[part], 0.1,
                        0.9, 0.99, 1e-8, 3, 0.01)
    return [out, mask, dx, x, w, velocity, matrix, first, second]


def boxes(backend: Any, arrays: Arrays) -> list[Any]:
    x, flat = arrays.random(6, 5, 9, 10), arrays.empty(6 * 3 * 4 * 9)
    backend.pack(x[:, 1:4, 2:6, :9], flat)
    backend.unpack_add(flat, x[:, 2:5, 5:9, 1:])
    backend.unpack(flat, x[:, :3, :4, 1:])
    return [flat, x]


RUNS: dict[str, Run] = {
    "conv like AlexNet's first": conv(4, 3, 67, 16, 11, 4, 0, 1),
    "conv like AlexNet's second": conv(4, 16, 27, 24, 5, 1, 2, 2),
    "pointwise conv": conv(4, 32, 14, 16, 1, 1, 0, 1),
    "conv like CosmoFlow's first": conv(2, 4, 17, 16, 3, 1, 1, 1, axes=3),
    "strided conv of volumes": conv(2, 6, 11, 8, 3, 2, 1, 2, axes=3),
    "pooling": pools(PoolSpec((3, 3), (2, 2), ((1, 0), (0, 1))), (28, 27), (14, 13)),
    "pooling of volumes": pools(PoolSpec((3, 2, 3), (2, 2, 1), ((1, 0), (0, 0), (0, 1))),
                                (12, 10, 9), (6, 5, 8)),
    "batch normalization": batchnorm(16, 40, 14, 13),
    "batch normalization of volumes": batchnorm(3, 5, 8, 9, 7),
    "batch normalization of features": batchnorm(64, 300),
    "lrn": lrn,
    "losses": losses,
    "matrices": matrices,
    "elementwise": elementwise,
    "boxes": boxes,
}


def on_host(backend: Any, arrays: list[Any]) -> Iterator[np.ndarray]:
    for array in arrays:
        if type(array) is np.ndarray:
            yield array
        else:
            host = np.empty(array.shape, array.dtype)
            backend.to_host(array, host)
            yield host


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_as_on_the_cpu(gpu: Any, run: Run, dtype: str) -> None:
    cpu = NumpyBackend()
    got, expected = run(gpu, Arrays(gpu, dtype)), run(cpu, Arrays(cpu, dtype))
    for a, b in zip(on_host(gpu, got), on_host(cpu, expected), strict=True):
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_two_runs_give_the_same_bits(gpu: Any, run: Run, dtype: str) -> None:
    first, second = (list(on_host(gpu, run(gpu, Arrays(gpu, dtype)))) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()


def test_dropout_mask_is_the_cpus(gpu: Any) -> None:
    cpu = NumpyBackend()
    masks = []
    for backend in (gpu, cpu):
        mask = backend.empty((64, 4096), np.float32)
        backend.dropout_mask(12345678901234567890, (128, 0), (64, 4096), (256, 4096), 0.5, mask)
        masks.append(next(on_host(backend, [mask])))
    assert masks[0].tobytes() == masks[1].tobytes()


def test_blocks_of_images_change_nothing(gpu: Any) -> None:
    ticks: list[int] = []
    small = type(gpu)(scratch_bytes=1)
    run = RUNS["conv like AlexNet's second"]
    for a, b in zip(on_host(gpu, run(gpu, Arrays(gpu, "float64"))),
                    on_host(small, run(small, Arrays(small, "float64"))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    x, w, out = (small.zeros(shape, np.float64) for shape in ((4, 2, 5, 5), (3, 2, 3, 3),
                                                              (4, 3, 3, 3)))
    small.conv_forward(x, w, None,
                       ConvSpec((1, 1), (1, 1), ((0, 0), (0, 0)), (Segment(0, 2, 0, 3),)), out,
                       lambda: ticks.append(1))
    assert len(ticks) >= 3


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "int16"])
def test_copies_keep_values(gpu: Any, dtype: str) -> None:
    host = np.arange(60).astype(dtype).reshape(3, 4, 5)
    buffer = gpu.host_buffer(60, dtype)
    assert buffer.shape == (60,) and buffer.dtype == dtype and gpu.host_buffer(0, dtype).size == 0
    for part in (slice(None), slice(None, None, 2)):
        device = gpu.zeros((3, 4, 5), dtype)[:, part]
        gpu.to_device(host[:, part], device)
        back = np.zeros((3, 4, 5), dtype)[:, part]
        gpu.to_host(device, back)
        np.testing.assert_array_equal(back, host[:, part])
        staged = buffer[: back.size].reshape(back.shape)
        gpu.to_host(device, staged)
        np.testing.assert_array_equal(staged, back)
        gpu.to_device(staged, device)
        staged[...] = 0  # the copy must be complete by now
        gpu.synchronize()
        gpu.to_host(device, back)
        np.testing.assert_array_equal(back, host[:, part])
    gpu.to_host(device[:0], back[:0])
    gpu.to_device(back[:0], device[:0])


def test_local_rank_selects_the_card(gpu: Any) -> None:
    cuda = gpu.xp.cuda
    count, current = cuda.runtime.getDeviceCount(), cuda.Device().id
    try:
        for rank in range(count + 1):
            assert type(gpu)(
                local_rank=rank).device == rank % count == cuda.Device().id
    finally:
        cuda.Device(current).use()
