"""Tests of kernels in one launch, for every backend (see kernel_cases)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.bound import Bound, Tick
from hpcpar.kernels.interface import Array, Backend, address
from tests.kernel_support import blank, fetch, place, random

#: The channels of the last shape are larger than a thread block processes alone.
SHAPES = [(4, 3), (5, 3, 4, 6), (2, 4, 3, 2, 5), (3, 2, 64, 48)]
RELU, SILU = ("relu", (0.0, 0.0)), ("silu", (0.0, 0.0))
#: Strides of the arrays (see `place`), and their type.
STYLES = [(0, np.float32), (1, np.float32), (2, np.float64)]
AFTER = ("nothing", "relu", "silu", "add", "add and relu", "add to it")
FORWARDS = [(source, after) for source in ("x", "moments", "statistics") for after in AFTER
            if (source, after) != ("statistics", "nothing")]
BACKWARDS = [("rest", "nothing"), ("whole", "nothing"), *(
    (part, before) for part in ("sums", "whole")
    for before in ("relu", "sum and relu", "copies", "all"))]


class Arrays:
    """The arrays of a batch normalization and its neighbors."""

    def __init__(self, backend: Backend, shape: tuple[int, ...], style: int, dtype: Any) -> None:
        self.backend, channels = backend, shape[1]
        self.count = shape[0] * int(np.prod(shape[2:]))
        self.x, self.y, self.other, self.out, self.dy, self.g, self.copy, self.arriving, self.dx = (
            place(backend, random(i, shape, dtype), style) for i in range(9))
        self.w, self.b, self.db, self.dw = (
            place(backend, random(10 + i, (channels,), dtype)) for i in range(4))
        self.running = place(backend, np.abs(random(20, (2, channels), dtype)), style)
        self.moments, self.gradients, self.sums = (
            place(backend, random(30 + i, (channels, 2), np.float64) ** 2 * 100) for i in range(3))
        self.mean, self.inv_std = (
            place(backend, np.abs(random(40 + i, (channels,), np.float64))) for i in range(2))

    def all(self) -> list[Array]:
        return [a for a in vars(self).values() if hasattr(a, "dtype")]

    def bind(self, calls: Sequence[tuple[Any, ...]]) -> list[Bound]:
        return [self.backend.bind(*call) for call in calls]


def equal(arrays: Arrays, calls: Sequence[tuple[Any, ...]], unread: Sequence[Array] = (),
          last: Array = None) -> None:
    """Check that the backend fuses the calls, and that this changes nothing but unread arrays.
    `last` is the array that the last call writes, if it lies where an unread one was.
    """
    bound = arrays.bind(calls)
    fused = arrays.backend.fuse(bound, [{address(a) for a in unread}] * len(bound))
    if not arrays.backend.works_later:
        assert fused is None
        return
    assert fused is not None
    given = [fetch(a) for a in arrays.all()]

    def results(run: Sequence[Tick]) -> list[np.ndarray]:
        for array, values in zip(arrays.all(), given, strict=True):
            array[...] = arrays.backend.xp.asarray(values)
        for call in run:
            call()
        return [fetch(a) for a in arrays.all()]

    single, joint, again = results(bound), results([fused]), results([fused])
    free = {address(a) for a in (*unread, arrays.moments, arrays.sums) if a is not last}
    for array, one, other, third in zip(arrays.all(), single, joint, again, strict=True):
        np.testing.assert_array_equal(other, third)
        if address(array) not in free:
            scale = 1e-6 if one.dtype == np.float32 else 1e-13
            np.testing.assert_allclose(other, one, rtol=10 * scale,
                                       atol=scale * max(1, np.abs(one).max()))


@pytest.mark.parametrize(("source", "after"), FORWARDS)
@pytest.mark.parametrize(("style", "dtype"), STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_batch_norm_forward(backend: Backend, shape: tuple[int, ...], style: int,
                                  source: str, after: str, dtype: Any) -> None:
    a = Arrays(backend, shape, style, dtype)
    calls: list[tuple[Any, ...]] = [("batchnorm_forward", a.x, a.mean, a.inv_std, a.w, a.b, a.y)]
    if source != "statistics":
        calls.insert(0, ("batchnorm_statistics", a.moments, a.count, 1e-3, a.mean, a.inv_std,
                         a.running, 0.2))
    if source == "x":
        calls.insert(0, ("channel_moments", a.x, a.moments))
    unread = []
    if after == "relu":
        calls.append(("activation_forward", *RELU, a.y, a.y))
    elif after == "silu":
        calls.append(("activation_forward", *SILU, a.y, a.out))
    elif after == "add to it":
        calls.append(("add", a.y, a.other, a.y))
    elif after != "nothing":
        calls.append(("add", a.other, a.y, a.out))
        unread = [a.y]
    if after == "add and relu":
        calls.append(("activation_forward", *RELU, a.out, a.out))
    equal(a, calls, unread)


@pytest.mark.parametrize(("part", "before"), BACKWARDS)
@pytest.mark.parametrize(("style", "dtype"), STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_batch_norm_backward(backend: Backend, shape: tuple[int, ...], style: int, part: str,
                                   before: str, dtype: Any) -> None:
    a = Arrays(backend, shape, style, dtype)
    calls: list[tuple[Any, ...]] = []
    g = a.dy
    if before in ("sum and relu", "all"):
        calls.append(("accumulate", a.arriving, a.dy))
    if before in ("relu", "sum and relu", "all"):
        calls.append(("activation_backward", *RELU, a.out, a.dy, a.dy))
    if before in ("copies", "all"):
        calls += [("copy", a.dy, a.g), ("copy", a.dy, a.copy)]
        g = a.g
    if part != "rest":
        calls.append(("channel_moments_backward", a.x, g, a.mean, a.inv_std, a.gradients))
    if part != "sums":
        calls += [("batchnorm_gradients", a.gradients, a.w, a.sums, a.db, a.dw),
                  ("batchnorm_backward", a.x, g, a.mean, a.inv_std, a.w, a.sums, a.count, a.dx)]
    equal(a, calls, [] if g is a.dy else [a.dy])


@pytest.mark.parametrize("function", [RELU, SILU])
@pytest.mark.parametrize(("style", "dtype"), STYLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_sum_and_activation(backend: Backend, shape: tuple[int, ...], style: int, dtype: Any,
                                  function: tuple[Any, ...]) -> None:
    a = Arrays(backend, shape, style, dtype)
    out = a.out if function is SILU else a.y
    equal(a, [("add_bias", a.y, a.b), ("activation_forward", *function, a.y, out)],
          [a.y] if function is SILU else [])
    equal(a, [("add", a.x, a.other, a.y), ("activation_forward", *function, a.y, a.y)])
    if len(shape) == 2:
        weight = place(backend, random(50, (shape[1], shape[1]), dtype))
        equal(a, [("gemm", a.x, weight, a.y), ("add_bias", a.y, a.b),
                  ("activation_forward", *function, a.y, a.y)])


def test_a_gradient_over_the_memory_of_the_one_before(backend: Backend) -> None:
    """The input gradient may lie where the gradient before the copies was."""
    a = Arrays(backend, (2, 3, 4, 4), 0, np.float32)
    equal(a, [("activation_backward", *RELU, a.out, a.dy, a.dy), ("copy", a.dy, a.g),
              ("channel_moments_backward", a.x, a.g, a.mean, a.inv_std, a.gradients),
              ("batchnorm_gradients", a.gradients, a.w, a.sums, None, None),
              ("batchnorm_backward", a.x, a.g, a.mean, a.inv_std, a.w, a.sums, a.count, a.dy)],
          [a.dy], last=a.dy)


def test_kernels_that_cannot_be_fused(backend: Backend) -> None:
    """Other arrays, arrays that overlap elsewhere, a sum that is read later, other weights."""
    a = Arrays(backend, (2, 3, 4, 4), 0, np.float32)
    normalize = ("batchnorm_forward", a.x, a.mean, a.inv_std, a.w, a.b, a.y)
    memory = blank(backend, (200,), np.float32)
    low, high = (memory[first:first + 96].reshape(2, 3, 4, 4) for first in (0, 8))
    gradients = ("channel_moments_backward", a.x, a.g, a.mean, a.inv_std, a.gradients)
    for calls in (
            [normalize],
            [normalize, ("activation_forward", *RELU, a.out, a.out)],
            [normalize, ("add", a.y, a.other, a.out)],
            [normalize, ("activation_forward", *RELU, a.y, a.y), normalize],
            [("batchnorm_forward", low, a.mean, a.inv_std, a.w, a.b, high),
             ("activation_forward", *RELU, high, high)],
            [("batchnorm_forward", a.x, a.mean, a.inv_std, a.w.astype(np.float64), a.b, a.y),
             ("activation_forward", *RELU, a.y, a.y)],
            [("activation_backward", *RELU, a.out, a.dy, a.dy), gradients],
            [("accumulate", a.arriving, a.dy), ("activation_backward", *RELU, a.out, a.dy, a.g),
             gradients],
            [("activation_backward", *RELU, low, a.dy, high),
             ("channel_moments_backward", a.x, high, a.mean, a.inv_std, a.gradients)],
            [("copy", a.dy, a.g), ("copy", a.other, a.copy), gradients],
            [("add_bias", a.y, a.b), ("activation_forward", *RELU, a.y, a.out)],
            [("add", a.x, a.other, a.y), ("activation_forward", *RELU, a.out, a.out)]):
        assert backend.fuse(a.bind(calls), [()] * len(calls)) is None
