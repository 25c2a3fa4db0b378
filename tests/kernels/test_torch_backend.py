"""PyTorch's convolutions behind the kernels' interface, held to the cases of all backends."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.torch_backend import TorchBackend, _call
from tests.kernel_conv_cases import *  # noqa: F403


@pytest.fixture(scope="module")
def backend() -> Any:
    return TorchBackend()


def spec_of(*segments: Segment, pads: tuple[int, int] = (1, 1)) -> ConvSpec:
    return ConvSpec((1, 1), (1, 1), (pads, pads), segments)


def test_pytorch_computes_windows_in_equal_groups() -> None:
    """Kernels above 1 x 1 in equal groups over all channels."""
    whole = spec_of(Segment(0, 4, 0, 6))
    assert _call((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 8, 8), whole) is not None
    assert _call((2, 4, 8, 8), (6, 4, 1, 1), (2, 6, 8, 8), whole) is None
    halves = spec_of(Segment(0, 2, 0, 3), Segment(2, 4, 3, 6))
    assert _call((2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 8, 8), halves) is not None
    uneven = spec_of(Segment(0, 2, 0, 2), Segment(2, 4, 2, 6))
    assert _call((2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 8, 8), uneven) is None
    assert _call((0, 4, 8, 8), (6, 4, 3, 3), (0, 6, 8, 8), whole) is None


def test_pads_of_one_side_are_added() -> None:
    """A block of a cut image has its padding on one side."""
    block = spec_of(Segment(0, 4, 0, 6), pads=(0, 1))
    call = _call((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 7, 7), block)
    assert call is not None and call.extra == [0, 1, 0, 1] and call.shape == (2, 4, 9, 9)


def test_two_runs_are_bitwise_equal(backend: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 9, 9), (6, 4, 3, 3)))
    first, second = np.empty((2, 2, 6, 9, 9), np.float32)
    for out in first, second:
        backend.conv_forward(x, w, None, spec_of(Segment(0, 4, 0, 6)), out)
    assert np.array_equal(first, second)
