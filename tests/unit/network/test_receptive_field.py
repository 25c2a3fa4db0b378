"""Receptive fields of transposed convolutions, interpolation and padding by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.network.layers.resample import Pad, Upsample
from hpcpar.network.layers.transposed import ConvTranspose2d
from hpcpar.network.receptive_field import (
    Interpolated,
    Periodic,
    Relation,
    Transposed,
    Window,
)

FIXED = settings(max_examples=150)
SMALL = st.integers(1, 4)


def reads(outputs: int, of_one: Callable[[int], set[int]], start: int, stop: int) -> set[int]:
    """Inputs that some outputs read, by looking at each."""
    return set().union(*(of_one(o) for o in range(start, min(stop, outputs))))


def check(relation: Relation, outputs: int, extent: int, of_one: Callable[[int], set[int]],
          tight: bool = True) -> None:
    """Every interval of outputs needs an interval that holds what it reads, and no more."""
    for start in range(outputs):
        for stop in range(start + 1, outputs + 1):
            lo, hi = relation.needed(start, stop, extent)
            assert 0 <= lo <= hi <= extent
            read = reads(outputs, of_one, start, stop)
            assert read <= set(range(lo, hi))
            if tight and read:
                assert (lo, hi) == (min(read), max(read) + 1)


@FIXED
@given(SMALL, SMALL, st.integers(0, 4), st.integers(1, 3), st.integers(1, 9))
def test_a_window_needs_the_inputs_that_it_covers(kernel: int, stride: int, padding: int,
                                                  dilation: int, extent: int) -> None:
    window = Window(kernel, stride, padding, dilation)
    outputs = (extent + 2 * padding - window.span) // stride + 1
    check(window, max(0, outputs), extent, lambda o: {
        at for k in range(kernel) if 0 <= (at := o * stride - padding + k * dilation) < extent},
        tight=dilation == 1 and padding < kernel)
    for start, stop in itertools.combinations(range(outputs + 1), 2):
        lo, hi = window.needed(start, stop, extent)
        whole = (stop - 1 - start) * stride + (kernel - 1) * dilation + 1
        assert sum(window.pads(start, stop, extent)) + hi - lo == whole


@FIXED
@given(SMALL, SMALL, st.integers(0, 4), st.integers(1, 3), st.integers(1, 5), st.data())
def test_transposed_convolution_needs_the_inputs_that_reach_its_outputs(
        kernel: int, stride: int, padding: int, dilation: int, extent: int,
        data: st.DataObject) -> None:
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    span = dilation * (kernel - 1) + 1
    outputs = (extent - 1) * stride - 2 * padding + span + extra
    if outputs < 1:
        return
    layer = ConvTranspose2d("t", ("x",), kernel=kernel, stride=stride, padding=padding,
                            dilation=dilation, output_padding=extra)
    assert layer.output_shape((1, extent, extent)) == (1, outputs, outputs)

    def of_one(o: int) -> set[int]:
        return {i for i in range(extent) for u in range(kernel)
                if i * stride - padding + dilation * u == o}

    relation = layer.relation("h", (1, extent, extent))
    assert relation == Transposed(kernel, stride, padding, dilation)
    # with a dilation, inputs between the outermost ones may reach no output here
    check(relation, outputs, extent, of_one, tight=dilation == 1)


@FIXED
@given(SMALL, st.integers(1, 6), st.booleans(), st.booleans())
def test_upsampling_needs_the_inputs_of_its_weights(scale: int, extent: int, linear: bool,
                                                    corners: bool) -> None:
    layer = Upsample("u", ("x",), (scale, 1), "linear" if linear else "nearest", linear and corners)
    x = (1, extent, 2)
    taps = layer.taps(0, x, (0, extent * scale))
    if taps is None:
        assert scale == 1
        return
    index, weight = taps
    assert abs(weight.sum(axis=1) - 1).max() < 1e-15
    relation = layer.relation("h", x)
    assert isinstance(relation, Interpolated)
    check(relation, extent * scale, extent, lambda o: set(index[o].tolist()))


@FIXED
@given(st.integers(1, 6), st.data())
def test_periodic_padding_needs_indices_past_the_ends_of_the_axis(extent: int,
                                                                  data: st.DataObject) -> None:
    before, after = (data.draw(st.integers(0, extent)) for _ in range(2))
    layer = Pad("p", ("x",), (before, 0), (after, 0), "periodic")
    relation = layer.relation("h", (1, extent, 3))
    if not before + after:
        return
    assert relation == Periodic(before)
    outputs = before + extent + after
    for start in range(outputs):
        for stop in range(start, outputs + 1):
            inputs = [i % extent for i in range(*relation.needed(start, stop, extent))]
            assert inputs == [(o - before) % extent for o in range(start, stop)]
