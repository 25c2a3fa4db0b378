"""Differences between training runs, and which of them count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcpar.train.rounding import QUANTITIES, difference
from hpcpar.train.verify import Result


def test_differences_are_relative_to_the_whole_tensors_norm() -> None:
    whole = [np.array([3.0, 0.0, 0.0]), np.array([4.0])]
    found = [np.array([3.0, 0.3]), np.array([4.4])]
    pieces = [(found[0], whole[0][:2]), (found[1], whole[1])]
    assert difference(pieces, whole) == pytest.approx(0.1)
    assert difference([(found[0], whole[0])], whole) == math.inf
    zero = np.zeros(4, np.float32)
    assert difference([(zero, zero)], [zero]) == 0 and difference([], [zero]) == 0
    # squares of small numbers are not lost
    small = np.full(4, 1e-30, np.float32)
    assert difference([(2 * small, small)], [small]) == pytest.approx(1)


def test_the_step_with_the_largest_relative_difference_counts() -> None:
    result = Result(["a", "loss"], np.full((2, len(QUANTITIES)), -1.0),
                    np.zeros((2, len(QUANTITIES))))
    steps = [(1e-7, 1e-6), (9e-5, 1e-4), (1e-3, 1e-1)]
    for value, tolerance in steps:
        now = np.full_like(result.worst, -1.0)
        now[0, 0], now[1, 0] = value, 0.0
        result.add(now, np.full_like(now, tolerance))
    most = result.largest
    assert (most.value, most.tolerance, str(most)) == (9e-5, 1e-4, "output of layer 'a'")
    assert result.passes and result.worst[0, 1] == -1 and result.worst[1, 0] == 0
    now[0, 3] = math.inf
    result.add(now, np.full_like(now, 1.0))
    assert not result.passes and result.largest.quantity == "weight"
