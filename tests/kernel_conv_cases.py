"""Tests of convolutions for every backend (see kernel_cases)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import Backend
from tests.kernel_support import (
    DTYPES,
    FIFTY_EXAMPLES,
    blank,
    check,
    extents,
    fetch,
    pad,
    place,
    random,
    torch_module,
)


@dataclass(frozen=True)
class ConvCase:
    """Shapes of a convolution on a block; for the styles of x, out, dy and dx see `place`."""

    spec: ConvSpec
    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    styles: tuple[int, int, int, int] = (0, 0, 0, 0)


@st.composite
def conv_cases(draw: Any, depthwise: bool = False) -> ConvCase:
    axes = draw(st.sampled_from([2, 2, 3]))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(low, high)] * axes))

    limit = 4 if axes == 2 else 3
    kernel, stride, pads = (numbers(1, limit), numbers(1, limit),
                            tuple(zip(numbers(0, 3), numbers(0, 3), strict=True)))
    dilation = draw(st.sampled_from([(1, 1, 1), (1, 1, 1), (1, 2, 1), (2, 1, 3), (3, 2, 2)]))[:axes]
    # There is at least one output; the kernel may be larger than the image without padding.
    low = [max(1, d * (k - 1) + 1 - sum(p)) for d, k, p in zip(dilation, kernel, pads, strict=True)]
    size = tuple(draw(st.integers(least, least + (9 if axes == 2 else 4))) for least in low)
    inputs, filters = draw(st.integers(1, 4)), draw(st.lists(st.integers(1, 5), min_size=1,
                                                             max_size=3))
    # A group without outputs in this block leaves a gap in the inputs.
    gap = draw(st.integers(0, 2))
    if depthwise:
        inputs, filters, gap = 1, [1] * draw(st.integers(2, 5)), 0
    segments, o = [], 0
    for group, count in enumerate(filters):
        first = gap + group * inputs
        segments.append(Segment(first, first + inputs, o, o + count))
        o += count
    spec = ConvSpec(stride, dilation, pads, tuple(segments))
    images = draw(st.integers(1, 3))
    out = extents(size, kernel, stride, dilation, pads)
    styles = draw(st.tuples(*[st.integers(0, 3)] * 4))
    return ConvCase(spec, (images, gap + len(filters) * inputs, *size), (o, inputs, *kernel),
                    (images, o, *out), styles)


def check_conv(backend: Backend, case: ConvCase, dtype: Any) -> None:
    torch = torch_module()
    spec = case.spec
    x, w, bias, dy = (random(i, s, dtype)
                      for i, s in enumerate((case.x, case.w, case.w[:1], case.out)))
    tx, tw, tb = (torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, w, bias))
    padded = pad(torch, tx, spec.pads)
    convolve = torch.nn.functional.conv2d if len(spec.pads) == 2 else torch.nn.functional.conv3d
    parts = [
        convolve(
            padded[:, s.in_start : s.in_stop],
            tw[s.out_start : s.out_stop],
            tb[s.out_start : s.out_stop],
            stride=spec.stride,
            dilation=spec.dilation,
        )
        for s in spec.segments
    ]
    # A block may own fewer outputs than its inputs would allow.
    want = torch.cat(parts, 1)[(..., *(slice(extent) for extent in case.out[2:]))]
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    ticks: list[int] = []
    dev_x, dev_w, dev_dy = (place(backend, x, case.styles[0]), place(backend, w),
                            place(backend, dy, case.styles[2]))
    out, dx = (blank(backend, case.out, dtype, case.styles[1]),
               blank(backend, case.x, dtype, case.styles[3]))
    dw, dbias = blank(backend, case.w, dtype), blank(backend, bias.shape, dtype)
    backend.conv_forward(dev_x, dev_w, place(backend, bias), spec, out, lambda: ticks.append(0))
    check(out, want.detach())
    backend.conv_forward(dev_x, dev_w, None, spec, out)
    check(out, (want - tb.reshape(-1, *(1,) * len(spec.pads))).detach())
    backend.conv_backward_data(dev_dy, dev_w, spec, dx, lambda: ticks.append(1))
    check(dx, tx.grad)
    backend.conv_backward_weight(dev_x, dev_dy, spec, dw, dbias, lambda: ticks.append(2))
    check(dw, tw.grad)
    check(dbias, tb.grad)
    assert set(ticks) == {0, 1, 2}


@given(case=conv_cases(), dtype=st.sampled_from(DTYPES))
@settings(FIFTY_EXAMPLES, max_examples=100)
def test_conv_against_torch(backend: Backend, case: ConvCase, dtype: Any) -> None:
    check_conv(backend, case, dtype)


@given(case=conv_cases(depthwise=True), dtype=st.sampled_from(DTYPES))
@FIFTY_EXAMPLES
def test_depthwise_conv_against_torch(backend: Backend, case: ConvCase, dtype: Any) -> None:
    check_conv(backend, case, dtype)


def test_depthwise_conv_without_outputs(backend: Backend) -> None:
    """A block that owns no outputs has zero gradients."""
    spec = ConvSpec((2, 2), (1, 1), ((1, 1), (0, 0)), (Segment(0, 1, 0, 1), Segment(1, 2, 1, 2)))
    x, w = (place(backend, random(i, s, np.float64)) for i, s in enumerate([(2, 2, 3, 4),
                                                                            (2, 1, 3, 3)]))
    none = blank(backend, (2, 2, 0, 1), np.float64)
    dx, dw, dbias = (blank(backend, s, np.float64) for s in (x.shape, w.shape, (2,)))
    backend.conv_forward(x, w, None, spec, none)
    backend.conv_backward_data(none, w, spec, dx)
    backend.conv_backward_weight(x, none, spec, dw, dbias)
    for gradient in (dx, dw, dbias):
        check(gradient, np.zeros(gradient.shape))


def plain_conv(n: int, c: int, o: int, size: int, kernel: int, stride: int = 1, pads: int = 0,
               dilation: int = 1, fewer: int = 0, axes: int = 2) -> ConvCase:
    spec = ConvSpec((stride,) * axes, (dilation,) * axes, ((pads, pads),) * axes,
                    (Segment(0, c, 0, o),))
    out = extents((size,) * axes, (kernel,) * axes, spec.stride, spec.dilation, spec.pads)
    return ConvCase(spec, (n, c, *(size,) * axes), (o, c, *(kernel,) * axes),
                    (n, o, *(extent - fewer for extent in out)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(plain_conv(2, 3, 8, 35, 11, 4), id="alexnet-conv1"),
        pytest.param(plain_conv(3, 12, 10, 13, 5, 1, 2), id="alexnet-conv2"),
        pytest.param(plain_conv(2, 8, 6, 14, 1), id="pointwise"),
        pytest.param(plain_conv(2, 8, 6, 3, 1), id="pointwise-small"),
        pytest.param(plain_conv(2, 8, 6, 13, 1, 2), id="pointwise-strided"),
        pytest.param(plain_conv(2, 4, 3, 4, 1, 1, 2), id="pointwise-padded"),
        pytest.param(plain_conv(2, 4, 3, 12, 2, 5), id="stride-over-kernel"),
        pytest.param(plain_conv(2, 4, 3, 3, 7, 1, 3), id="kernel-over-input"),
        pytest.param(plain_conv(2, 4, 3, 2, 2, 1, 4), id="outputs-of-padding-only"),
        pytest.param(plain_conv(2, 4, 3, 9, 3, 1, 1, fewer=2), id="inputs-unread"),
        pytest.param(plain_conv(2, 4, 3, 9, 3, 2, 1, fewer=1), id="inputs-unread-strided"),
        pytest.param(plain_conv(2, 4, 3, 11, 3, 2, 2, 3), id="dilated-strided"),
        pytest.param(plain_conv(2, 4, 130, 7, 3), id="many-filters"),
        pytest.param(plain_conv(2, 4, 8, 8, 3, 1, 1, axes=3), id="cosmoflow-conv1"),
        pytest.param(plain_conv(1, 3, 4, 20, 2, axes=3), id="volume-of-many-planes"),
        pytest.param(plain_conv(2, 3, 4, 7, 3, 2, 1, axes=3), id="volume-strided"),
        pytest.param(plain_conv(2, 6, 4, 5, 1, axes=3), id="volume-pointwise"),
        pytest.param(plain_conv(2, 3, 4, 6, 1, 2, axes=3), id="volume-pointwise-strided"),
        pytest.param(plain_conv(1, 3, 4, 6, 3, 1, 1, fewer=2, axes=3), id="volume-inputs-unread"),
    ],
)
def test_conv_geometries(backend: Backend, case: ConvCase, dtype: Any) -> None:
    check_conv(backend, case, dtype)


def test_conv_by_hand(backend: Backend) -> None:
    """One channel, computed by hand without a reference library."""
    spec = ConvSpec((2, 1), (1, 1), ((1, 0), (0, 1)), (Segment(0, 1, 0, 1),))
    x = place(backend, np.arange(1.0, 7.0).reshape(1, 1, 3, 2))
    w = place(backend, np.array([[[[1.0, 10.0], [100.0, 1000.0]]]]))
    out = blank(backend, (1, 1, 2, 2), np.float64)
    backend.conv_forward(x, w, place(backend, np.array([0.5])), spec, out)
    np.testing.assert_array_equal(fetch(out)[0, 0], [[2100.5, 200.5], [6543.5, 604.5]])


@given(case=conv_cases())
@FIFTY_EXAMPLES
def test_conv_adjoints(backend: Backend, case: ConvCase) -> None:
    """<conv(x, w), dy> = <x, backward data(dy)> = <w, backward weight(x, dy)>."""
    x, w, dy = (random(i, s, np.float64) for i, s in enumerate((case.x, case.w, case.out)))
    out, dx, dw = (blank(backend, s, np.float64) for s in (case.out, case.x, case.w))
    dev_x, dev_w, dev_dy = place(backend, x), place(backend, w), place(backend, dy)
    backend.conv_forward(dev_x, dev_w, None, case.spec, out)
    backend.conv_backward_data(dev_dy, dev_w, case.spec, dx)
    backend.conv_backward_weight(dev_x, dev_dy, case.spec, dw, None)
    value = np.vdot(fetch(out), dy)
    bound = 1e-11 * np.abs(fetch(out) * dy).sum() + 1e-11
    assert abs(np.vdot(x, fetch(dx)) - value) < bound
    assert abs(np.vdot(w, fetch(dw)) - value) < bound


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("images", "channels", "filters", "rows"),
    [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (2, 0, 4, 0)]
)
def test_conv_empty(backend: Backend, images: int, channels: int, filters: int, rows: int,
                    stride: int, axes: int) -> None:
    segments, others = (Segment(0, channels, 0, filters),), axes - 1
    spec = ConvSpec((stride,) * axes, (1,) * axes, ((1, 1),) * axes, segments)
    x = place(backend,
              random(0, (images, channels, (rows - 1) * stride + 1 if rows else 0, *(5,) * others),
                     np.float32))
    w = place(backend, random(1, (filters, channels, *(3,) * axes), np.float32))
    bias = random(2, (filters,), np.float32)
    out = blank(backend, (images, filters, rows, *(4 // stride + 1,) * others), np.float32)
    dx, dw, dbias = (blank(backend, s, np.float32) for s in (x.shape, w.shape, bias.shape))
    backend.conv_forward(x, w, place(backend, bias), spec, out)
    check(out, np.broadcast_to(bias.reshape(-1, *(1,) * axes), out.shape))
    dy = place(backend, random(3, out.shape, np.float32))
    backend.conv_backward_data(dy, w, spec, dx)
    check(dx, np.zeros(dx.shape))
    backend.conv_backward_weight(x, dy, spec, dw, dbias)
    check(dw, np.zeros(dw.shape))
    check(dbias, fetch(dy).sum(axis=(0, *range(2, 2 + axes))))


def test_conv_without_output_columns(backend: Backend) -> None:
    """With a stride beyond the window, the reach of no columns is negative."""
    spec = ConvSpec((3, 3), (1, 1), ((0, 0), (0, 0)), (Segment(0, 2, 0, 2),))
    x, dy = place(backend, random(0, (2, 2, 4, 5), np.float32)), np.zeros((2, 2, 2, 0), np.float32)
    w, dw = place(backend, random(1, (2, 2, 1, 1), np.float32)), blank(backend, (2, 2, 1, 1),
                                                                       np.float32)
    dx, dbias = blank(backend, x.shape, np.float32), blank(backend, (2,), np.float32)
    backend.conv_forward(x, w, None, spec, place(backend, dy))
    backend.conv_backward_data(place(backend, dy), w, spec, dx)
    backend.conv_backward_weight(x, place(backend, dy), spec, dw, dbias)
    for zeros in dx, dw, dbias:
        check(zeros, np.zeros(zeros.shape))


def test_conv_unowned_group(backend: Backend) -> None:
    """The gradient of a block with inputs but without segments is zero."""
    spec = ConvSpec((1, 1), (1, 1), ((1, 1), (1, 1)), ())
    dx = blank(backend, (1, 2, 4, 4), np.float32)
    empty = place(backend, np.zeros((1, 0, 4, 4), np.float32))
    backend.conv_backward_data(empty, place(backend, np.zeros((0, 2, 3, 3), np.float32)), spec, dx)
    check(dx, np.zeros(dx.shape))
