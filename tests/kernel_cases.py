"""Tests of the kernel interface that every backend must pass, including convolutions, pooling and
normalization.

A test module defines a fixture ``backend`` (module scope) and does
``from tests.kernel_cases import *``. The reference is PyTorch in float64 on the CPU; tests without
a reference run without PyTorch.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import ACTIVATIONS, Backend
from hpcpar.network.layers import Activation
from tests.kernel_conv_cases import *  # noqa: F403
from tests.kernel_fusion_cases import *  # noqa: F403
from tests.kernel_norm_cases import *  # noqa: F403
from tests.kernel_pool_cases import *  # noqa: F403
from tests.kernel_support import DTYPES, blank, check, fetch, loss_sums, place, random, torch_module
from tests.layer_cases import cases

GOLDEN = 0x9E3779B97F4A7C15
#: The numbers (a, b) of an activation that does not use them.
NONE = (0.0, 0.0)


# -- elementwise -----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_relu(backend: Backend, style: int, dtype: Any) -> None:
    host = random(0, (3, 4, 5), dtype)
    host[0, 0, :3] = [np.nan, 0, -np.inf]
    x, out = place(backend, host, style), blank(backend, host.shape, dtype, style)
    backend.activation_forward("relu", NONE, x, out)
    np.testing.assert_array_equal(fetch(out), np.maximum(host, 0))
    assert np.isnan(fetch(out)[0, 0, 0])
    gradient = random(1, host.shape, dtype)
    gradient[0, 0, 1] = np.inf
    dy, dx = place(backend, gradient, style), blank(backend, host.shape, dtype, style)
    want = np.where(host > 0, gradient, 0)
    backend.activation_backward("relu", NONE, out, dy, dx)
    np.testing.assert_array_equal(fetch(dx), want)
    backend.activation_forward("relu", NONE, x, x)
    backend.activation_backward("relu", NONE, x, dy, dy)
    np.testing.assert_array_equal(fetch(dy), want)


#: Every activation function.
ACTIVATION_LAYERS = {name: case.layer(name, **case.options) for name, case in cases(1).items()
                     if issubclass(case.layer, Activation)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("case", ACTIVATION_LAYERS)
def test_activations(backend: Backend, case: str, style: int, dtype: Any) -> None:
    """Values and gradients are PyTorch's, at kinks and far out too, also in place; NaN stays."""
    torch, layer = torch_module(), cast(Activation, ACTIVATION_LAYERS[case])
    from tests.reference_layers import activation

    name, numbers = layer.kind, layer.numbers
    assert name in ACTIVATIONS
    host, gradient = 3 * random(0, (3, 4, 5), dtype), random(1, (3, 4, 5), dtype)
    host[0, 0] = [0, *numbers, -80, 80]
    gradient[0, 0, 3] = np.inf if name == "clip" else 1
    tx = torch.from_numpy(host.astype(np.float64)).requires_grad_()
    ty = activation(layer, tx)
    ty.backward(torch.from_numpy(gradient.astype(np.float64)))
    x, y, dx = place(backend, host, style), blank(backend, host.shape, dtype, style), blank(
        backend, host.shape, dtype, style)
    dy = place(backend, gradient, style)
    backend.activation_forward(name, numbers, x, y)
    close = {np.float64: 1e-12, np.float32: 1e-5}[dtype]
    np.testing.assert_allclose(fetch(y), ty.detach().numpy(), rtol=close, atol=close)
    kept = x if "input" in layer.backward_reads else y
    backend.activation_backward(name, numbers, kept, dy, dx)
    np.testing.assert_allclose(fetch(dx), tx.grad.numpy(), rtol=close, atol=close)
    backend.activation_backward(name, numbers, kept, dy, dy)
    np.testing.assert_array_equal(fetch(dy), fetch(dx))
    backend.activation_forward(name, numbers, x, x)
    np.testing.assert_array_equal(fetch(x), fetch(y))
    wrong = place(backend, np.full((2, 3), np.nan, dtype), style)
    backend.activation_forward(name, numbers, wrong, wrong)
    assert np.isnan(fetch(wrong)).all()
    none = place(backend, host[:0], style)
    backend.activation_forward(name, numbers, none, none)
    backend.activation_backward(name, numbers, none, none, none)


def splitmix64(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_dropout_mask_definition(backend: Backend) -> None:
    """The generator is splitmix64: with the key as seed, element i uses output number i."""
    # These are the published first outputs for seed 1234567.
    assert [splitmix64((1234567 + (1 + i) * GOLDEN) % 2**64)
            for i in range(2)] == [6457827717110365317, 3203168211198807973]
    key, extent = 2**64 - 5, (3, 7)
    out = blank(backend, extent, np.float64)
    backend.dropout_mask(key, (0, 0), extent, extent, 0.3, out)
    uniform = [(splitmix64((key + (1 + i) * GOLDEN) % 2**64) >> 11) * 2.0**-53 for i in range(21)]
    np.testing.assert_array_equal(fetch(out).ravel(),
                                  [1 / (1 - 0.3) if u >= 0.3 else 0 for u in uniform])


@pytest.mark.parametrize("style", range(4))
def test_dropout_mask_blocks(backend: Backend, style: int) -> None:
    extent, key, rate = (6, 5, 9, 8), 123456789, 0.4
    whole = blank(backend, extent, np.float32)
    backend.dropout_mask(key, (0, 0, 0, 0), extent, extent, rate, whole)
    start, shape = (2, 1, 3, 2), (3, 4, 5, 6)
    block = blank(backend, shape, np.float32, style)
    backend.dropout_mask(key, start, shape, extent, rate, block)
    np.testing.assert_array_equal(fetch(block), fetch(whole)[2:5, 1:5, 3:8, 2:8])
    empty = blank(backend, (0, 4, 5, 6), np.float32)
    backend.dropout_mask(key, start, (0, 4, 5, 6), extent, rate, empty)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_dropout_mask_mean(backend: Backend, rate: float) -> None:
    shape = (40, 2000)
    out = blank(backend, shape, np.float32)
    backend.dropout_mask(7, (0, 0), shape, shape, rate, out)
    mask = fetch(out)
    # The bound is five standard deviations of the mean of 80000 samples.
    assert abs(mask.mean() - 1) <= 5 * np.sqrt(rate / (1 - rate) / mask.size) + 1e-6
    assert set(np.unique(mask)) <= {0, np.float32(1 / (1 - rate))}


@pytest.mark.parametrize("style", range(4))
def test_multiply_bias_and_sums(backend: Backend, style: int) -> None:
    a, b, bias = (random(0, (6, 5), np.float64), random(1, (6, 5), np.float64),
                  random(2, (5,), np.float64))
    y, out, total = place(backend, a, style), blank(backend, a.shape, np.float64,
                                                    style), blank(backend, bias.shape, np.float64)
    backend.multiply(y, place(backend, b, style), out)
    check(out, a * b)
    backend.add(y, place(backend, b, style), out)
    check(out, a + b)
    backend.add(out, y, out)
    check(out, 2 * a + b)
    backend.scale(out, -0.5)
    check(out, -a - b / 2)
    backend.sum_samples(y, total)
    check(total, a.sum(axis=0))
    backend.add_bias(y, place(backend, bias))
    check(y, a + bias)
    backend.sum_samples(place(backend, a[:0]), total)
    check(total, np.zeros(5))
    images = random(3, (3, 5, 4, 2), np.float64)
    y = place(backend, images, style)
    backend.add_bias(y, place(backend, bias))
    check(y, images + bias[:, None, None])
    backend.sum_samples(y, total)
    check(total, fetch(y).sum(axis=(0, 2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_weighted_sums(backend: Backend, style: int, dtype: Any) -> None:
    """A product with a sparse matrix along each image axis; one axis remains unchanged."""
    x, rng = random(0, (2, 3, 4, 5, 6), dtype), np.random.default_rng(1)
    index = [rng.integers(0, 4, (2, 7)), rng.integers(0, 6, (3, 2))]
    weight = [rng.standard_normal(i.shape).astype(dtype) for i in index]
    matrices = [np.zeros((7, 4)), np.zeros((2, 6))]
    for matrix, rows, entries in zip(matrices, index, weight, strict=True):
        for columns, values in zip(rows, entries, strict=True):
            np.add.at(matrix, (np.arange(len(columns)), columns), values)
    tables = [(place(backend, i), place(backend, w)) for i, w in zip(index, weight, strict=True)]
    out = blank(backend, (2, 3, 7, 5, 2), dtype, style)
    backend.weighted_sums(place(backend, x, style), [tables[0], None, tables[1]], out)
    check(out, np.einsum("ncdhw,id,jw->ncihj", x, *matrices))
    same = blank(backend, x.shape, dtype, style)
    backend.weighted_sums(place(backend, x, style), [None, None, None], same)
    check(same, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("image", [(4, 5), (2, 3, 4), (0, 3)])
def test_gates(backend: Backend, image: tuple[int, ...], style: int, dtype: Any) -> None:
    """Products with one number per channel of an image, and sums of products over the pixels."""
    x, other = random(0, (2, 3, *image), dtype), random(1, (2, 3, *image), dtype)
    gate = random(2, (2, 3), dtype)
    out, sums = blank(backend, x.shape, dtype, style), blank(backend, gate.shape, dtype, style)
    lifted = gate.reshape(2, 3, *(1,) * len(image))
    backend.multiply(place(backend, x, style), place(backend, lifted, style), out)
    check(out, x * lifted)
    backend.image_products(place(backend, x, style), place(backend, other, style), sums)
    check(sums, (x.astype(np.float64) * other).sum(axis=tuple(range(2, x.ndim))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(4, 5, 6), (1, 3, 1), (0, 3, 2), (3, 2, 0)])
def test_gemm(backend: Backend, m: int, n: int, k: int, transpose_a: bool, transpose_b: bool,
              dtype: Any) -> None:
    a, b = (random(0, (k, m) if transpose_a else (m, k), dtype),
            random(1, (n, k) if transpose_b else (k, n), dtype))
    want = (a.T if transpose_a else a).astype(np.float64) @ (b.T if transpose_b else b)
    for style in range(4):
        out = blank(backend, (m, n), dtype, style)
        backend.gemm(place(backend, a, style), place(backend, b, style), out,
                     transpose_a=transpose_a, transpose_b=transpose_b)
        check(out, want)
        out = blank(backend, (m, n), dtype, style)
        backend.gemm(place(backend, a, style), place(backend, b, style), out,
                     transpose_a=transpose_a, transpose_b=transpose_b, tick=int)
        check(out, want)


# -- losses and update -----------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_softmax_cross_entropy(backend: Backend, style: int, dtype: Any) -> None:
    torch = torch_module()
    x, labels = 5 * random(0, (7, 6), dtype), np.array([0, 5, -1, 2, 2, -1, 3])
    x[3, 2], x[4, 0] = 40, 300
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    want = torch.nn.functional.cross_entropy(tx, torch.from_numpy(labels), reduction="sum",
                                             ignore_index=-1)
    (0.25 * want).backward()
    dx = blank(backend, x.shape, dtype, style)
    loss, correct = loss_sums(backend, "softmax_cross_entropy", place(backend, x, style),
                              place(backend, labels), 0.25, dx)
    assert loss == pytest.approx(want.item(), rel=1e-10 if dtype == np.float64 else 1e-5)
    assert correct == int(((x.argmax(axis=1) == labels) & (labels >= 0)).sum())
    check(dx, tx.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_logistic_cross_entropy(backend: Backend, style: int, dtype: Any) -> None:
    torch = torch_module()
    x, labels, first = 5 * random(0, (6, 4), dtype), np.array([0, 3, -1, 6, 5, 9]), 3
    x[1, 0], x[0, 1] = 500, -500
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    target = (labels[:, None] == np.arange(first, first + 4)).astype(np.float64)
    counted = torch.from_numpy((labels >= 0).astype(np.float64)[:, None])
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        tx, torch.from_numpy(target), reduction="none")
    want = (losses * counted).sum()
    (0.5 * want).backward()
    dx = blank(backend, x.shape, dtype, style)
    loss, _ = loss_sums(backend, "logistic_cross_entropy", place(backend, x, style),
                        place(backend, labels), first, 0.5, dx)
    assert loss == pytest.approx(want.item(), rel=1e-10 if dtype == np.float64 else 1e-5)
    check(dx, tx.grad)


def test_losses_without_samples(backend: Backend) -> None:
    x, labels = place(backend, np.zeros((0, 4), np.float32)), place(backend, np.zeros(0, np.int64))
    dx = blank(backend, (0, 4), np.float32)
    assert loss_sums(backend, "softmax_cross_entropy", x, labels, 1.0, dx) == [0, 0]
    assert loss_sums(backend, "logistic_cross_entropy", x, labels, 0, 1.0, dx)[0] == 0
    x, labels = place(backend, np.ones((2, 4), np.float32)), place(backend, np.full(2, -1))
    dx = blank(backend, (2, 4), np.float32)
    assert loss_sums(backend, "softmax_cross_entropy", x, labels, 1.0, dx) == [0, 0]
    check(dx, np.zeros((2, 4)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_mean_squared_error(backend: Backend, style: int, dtype: Any) -> None:
    x, targets = random(0, (6, 4), dtype), random(1, (6, 4), dtype)
    targets[2] = np.nan
    difference = np.where(np.isnan(targets), 0, x.astype(np.float64) - targets)
    dx = blank(backend, x.shape, dtype, style)
    loss, _ = loss_sums(backend, "mean_squared_error", place(backend, x, style),
                        place(backend, targets, style), 0.25, dx)
    assert loss == pytest.approx((difference**2).sum(), rel=1e-10 if dtype == np.float64 else 1e-5)
    check(dx, 0.5 * difference)
    none = place(backend, x[:0])
    assert loss_sums(backend, "mean_squared_error", none, none, 1.0, none)[0] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", [(17,), (5, 7), (0, 4)])
def test_sgd_update(backend: Backend, shape: tuple[int, ...], style: int, dtype: Any) -> None:
    w, grad, velocity = (random(i, shape, dtype) for i in range(3))
    dev_w, dev_v = place(backend, w, style), place(backend, velocity, style)
    backend.sgd_update(dev_w, place(backend, grad, style), dev_v, 0.1, 0.9, 0.01)
    want = 0.9 * velocity.astype(np.float64) - 0.1 * (grad + 0.01 * w.astype(np.float64))
    check(dev_v, want)
    check(dev_w, w + want)
    plain = place(backend, w, style)
    backend.sgd_update(plain, place(backend, grad, style), None, 0.1, 0.9, 0.01)
    check(plain, w - 0.1 * (grad + 0.01 * w.astype(np.float64)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", [(17,), (5, 7), (0, 4)])
def test_adam_update(backend: Backend, shape: tuple[int, ...], style: int, dtype: Any) -> None:
    torch = torch_module()
    w = random(0, shape, dtype)
    tw = torch.nn.Parameter(torch.from_numpy(w.astype(np.float64)))
    adam = torch.optim.Adam([tw], lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    dev_w, first, second = (place(backend, a, style) for a in (w, np.zeros(shape, dtype),
                                                               np.zeros(shape, dtype)))
    for step in range(1, 4):
        grad = random(step, shape, dtype)
        tw.grad = torch.from_numpy(grad.astype(np.float64))
        adam.step()
        backend.adam_update(dev_w, place(backend, grad, style), first, second, 0.05, 0.8, 0.95,
                            1e-6, step, 0.1)
        check(dev_w, tw.detach())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_search(backend: Backend, value: float) -> None:
    host = random(0, (4, 5, 6), np.float32)
    bad = host.copy()
    bad[2, 3, 4] = value
    found = backend.zeros((9,), np.int64)
    for style in range(4):
        good, other = place(backend, host, style), place(backend, bad, style)
        outputs = [*[good, other] * 4, place(backend, host[:0])]
        for x, expected in ((good, [0] * 9), (other, [*[0, 1] * 4, 0]), (good, [0] * 9),
                            (outputs[-1], [0] * 9)):
            backend.nonfinite_search(x, outputs, found)()
            assert fetch(found).tolist() == expected


# -- arrays and boxes ------------------------------------------------------------------------------
@pytest.mark.parametrize("style", range(4))
def test_boxes(backend: Backend, style: int) -> None:
    host = random(0, (2, 3, 4), np.float32)
    box, flat = place(backend, host, style), blank(backend, (24,), np.float32)
    backend.pack(box, flat)
    np.testing.assert_array_equal(fetch(flat), host.ravel())
    target = blank(backend, host.shape, np.float32, style)
    backend.unpack(flat, target)
    np.testing.assert_array_equal(fetch(target), host)
    backend.unpack_add(flat, target)
    np.testing.assert_array_equal(fetch(target), 2 * host)


@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", [(6,), (2, 3, 4), (2, 3, 4, 5, 6), (2, 0)])
def test_copy_and_accumulate(backend: Backend, shape: tuple[int, ...], style: int) -> None:
    x, y = random(0, shape, np.float64), random(1, shape, np.float64)
    out = place(backend, y, style)
    backend.accumulate(place(backend, x, 3 - style), out)
    check(out, x + y)
    for dtype in DTYPES:
        narrow = blank(backend, shape, dtype, style)
        backend.copy(place(backend, x, 3 - style), narrow)
        np.testing.assert_array_equal(fetch(narrow), x.astype(dtype))


def test_boxes_empty(backend: Backend) -> None:
    box, flat = blank(backend, (2, 0, 4), np.float32), blank(backend, (0,), np.float32)
    backend.pack(box, flat)
    backend.unpack(flat, box)
    backend.unpack_add(flat, box)


@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("stored", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
def test_images_are_normalized(backend: Backend, stored: type, style: int) -> None:
    """Images of any type are normalized in the type of the result."""
    for dtype in DTYPES:
        for shape in ((2, 3, 4, 5), (2, 3, 2, 4, 5), (2, 0, 4, 5)):
            images = (100 * abs(random(0, shape, np.float64))).astype(stored)
            channels = (shape[1], *(1,) * (len(shape) - 2))
            mean, scale = (random(seed, channels, dtype) for seed in (1, 2))
            out = blank(backend, shape, dtype, style)
            backend.normalize(*map(backend.upload, (images, mean, scale)), out)
            np.testing.assert_array_equal(fetch(out), (images.astype(dtype) - mean) * scale)
        backend.normalize(backend.upload(images), 0.0, 1.0, out)
        np.testing.assert_array_equal(fetch(out), images.astype(dtype))


def test_transfers(backend: Backend) -> None:
    staged = backend.host_buffer(6, np.float32)
    staged[...] = np.arange(6)
    device = backend.zeros((2, 3), np.float32)
    backend.to_device(staged.reshape(2, 3), device)
    back = np.empty((2, 3), np.float32)
    backend.to_host(device, back)
    backend.synchronize()
    np.testing.assert_array_equal(back.ravel(), np.arange(6))
    assert backend.empty((2, 0), np.float64).shape == (2, 0)


# -- prepared calls --------------------------------------------------------------------------------
@pytest.mark.parametrize("style", range(4))
def test_a_bound_kernel_reads_its_arrays_anew(backend: Backend, style: int) -> None:
    """Weights with gaps, too, which kernels get as a copy."""
    shape, count = (3, 4, 5, 6), 90
    x, dy, out, dx = (place(backend, random(i, shape, np.float32), style) for i in range(4))
    w, b = (place(backend, random(i, (4,), np.float32), style) for i in range(2))
    dw, db = (blank(backend, (4,), np.float32) for _ in range(2))
    running = place(backend, np.abs(random(4, (2, 4), np.float32)), style)
    mean, inv_std = (backend.zeros((4,), np.float64) for _ in range(2))
    moments, sums, scaled = (backend.zeros((4, 2), np.float64) for _ in range(3))
    kernel, spec = place(backend, random(5, (2, 4, 3, 3), np.float32)), ConvSpec(
        (1, 1), (1, 1), ((1, 1), (1, 1)), (Segment(0, 4, 0, 2),))
    y, dkernel = (blank(backend, s, np.float32) for s in ((3, 2, 5, 6), (2, 4, 3, 3)))
    calls: list[tuple[Any, ...]] = [
        ("channel_moments", x, moments),
        ("batchnorm_statistics", moments, count, 1e-3, mean, inv_std, running, 0.25),
        ("batchnorm_forward", x, mean, inv_std, w, b, out),
        ("activation_forward", "clip", (-0.5, 0.5), out, out),
        ("activation_backward", "clip", (-0.5, 0.5), out, dy, dy),
        ("channel_moments_backward", x, dy, mean, inv_std, sums),
        ("batchnorm_gradients", sums, w, scaled, db, dw),
        ("batchnorm_gradients", sums, w, scaled, None, None),
        ("batchnorm_backward", x, dy, mean, inv_std, w, scaled, count, dx),
        ("conv_forward", x, kernel, None, spec, y, None),
        ("conv_backward_weight", x, y, spec, dkernel, None, None),
        ("conv_backward_data", y, kernel, spec, dx, None),
        ("batchnorm_running", running, 1e-3, mean, inv_std)]
    bound = [backend.bind(*call) for call in calls]
    for seed in (10, 20):
        given = [(a, fetch(place(backend, random(seed + i, a.shape, np.float32))))
                 for i, a in enumerate((x, dy, w, b, kernel))]
        before = fetch(running)
        results = []
        for run in (bound, [partial(getattr(backend, name), *args) for name, *args in calls]):
            for array, values in (*given, (running, before)):
                array[...] = backend.xp.asarray(values)
            for call in run:
                call()
            results.append([fetch(a) for a in (dx, out, dy, db, dw, running, y, dkernel, moments,
                                               sums, scaled, mean, inv_std)])
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(results[0][4], results[0][9][:, 1], rtol=1e-6)
        np.testing.assert_array_equal(results[0][10], results[0][9] * given[2][1][:, None])


def test_bound_kernels_accept_empty_blocks(backend: Backend) -> None:
    x, sums = blank(backend, (0, 3, 4, 4), np.float32), blank(backend, (3, 2), np.float64)
    backend.bind("activation_forward", "relu", (0.0, 0.0), x, x)()
    backend.bind("channel_moments", x, sums)()
    check(sums, np.zeros((3, 2)))


@pytest.mark.parametrize("kernel", ["plain", "sgd", "adam"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_together_equal_single_ones(backend: Backend, dtype: Any, kernel: str) -> None:
    """Arrays have many pieces and any layout; numbers and arrays change from call to call."""
    def update(rate: float, w: Any, grad: Any, first: Any, second: Any) -> None:
        if kernel == "adam":
            backend.adam_update(w, grad, first, second, rate, 0.8, 0.95, 1e-6, 3, 0.1)
        else:
            backend.sgd_update(w, grad, None if kernel == "plain" else first, rate, 0.9, 0.1)

    shapes = [(7,), (3, 5), (0, 4), (40_003,), (190, 200), (1,)]

    def arrays() -> list[list[Any]]:
        return [[place(backend, np.abs(random(10 * i + k, shape, dtype)), style)
                 for k in range(4)]
                for i, (shape, style) in enumerate((s, i % 4) for i, s in enumerate(shapes))]

    single, joint, others = arrays(), arrays(), arrays()
    rates = ((0.1, 0.1), (0.2, 0.05))
    for which, (rate, late_rate) in itertools.product((joint, others), rates):
        if which is joint:
            for i, each in enumerate(single):
                update(late_rate if i == 3 else rate, *each)
        with backend.together():
            for i, each in enumerate(which):
                update(late_rate if i == 3 else rate, *each)
    for expected, *found in zip(single, joint, others, strict=True):
        for one in found:
            for a, b in zip(expected, one, strict=True):
                np.testing.assert_array_equal(fetch(a), fetch(b))


@pytest.mark.parametrize(("stride", "images", "inputs"),
                         [(1, 2, (0, 6)), (2, 2, (0, 6)), (1, 1, (2, 5)), (1, 40, (0, 6))])
def test_bound_weight_gradients_of_pixels(backend: Backend, stride: int, images: int,
                                          inputs: tuple[int, int]) -> None:
    """1 x 1 kernels: with a stride or on many images, the product needs copies or blocks."""
    x = place(backend, random(0, (images, 6, 12 * stride, 13 * stride), np.float32))
    dy = place(backend, random(1, (images, 5, 12, 13), np.float32))
    dw, expected = (blank(backend, (5, inputs[1] - inputs[0], 1, 1), np.float32) for _ in range(2))
    spec = ConvSpec((stride, stride), (1, 1), ((0, 0), (0, 0)), (Segment(*inputs, 0, 5),))
    bound = backend.bind("conv_backward_weight", x, dy, spec, dw, None, None)
    for seed in (2, 3):
        x[...] = backend.xp.asarray(random(seed, x.shape, np.float32))
        dy[...] = backend.xp.asarray(random(seed + 2, dy.shape, np.float32))
        bound()
        backend.conv_backward_weight(x, dy, spec, expected, None, None)
        np.testing.assert_array_equal(fetch(dw), fetch(expected))
        pixels = fetch(x)[:, slice(*inputs), ::stride, ::stride]
        check(dw, np.einsum("nohw,nihw->oi", fetch(dy).astype(float), pixels)[..., None, None])


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_function(backend: Backend, dtype: Any) -> None:
    host = 2 * random(3, (3, 4, 5), dtype)
    host[0, 0] = [0, -8, 8, np.inf, 1e-3]
    want = [math.erf(t) for t in host.ravel()]
    np.testing.assert_allclose(fetch(backend.erf(place(backend, host, 0))),
                               np.reshape(want, host.shape), rtol=4 * np.finfo(dtype).eps)
