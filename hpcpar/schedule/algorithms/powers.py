"""Decides the logarithms of group sizes."""

from __future__ import annotations

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Ints


def log2_floor(p: Ints) -> IntArray:
    """log2 p, rounded down."""
    return np.frexp(p)[1].astype(np.int64) - 1


def log2_ceil(p: Ints) -> IntArray:
    """log2 p, rounded up."""
    power = log2_floor(p)
    return power + beyond_power(p)


def beyond_power(p: Ints) -> IntArray:
    """1 where p is not a power of two, else 0."""
    return np.greater(p, np.left_shift(1, log2_floor(p))).astype(np.int64)
