"""Decides at which sizes a movement is walked: few, because its time is convex in the size.

A time is a maximum over chains of messages, and each chain's time grows by a constant rate. So a
curve of times consists of straight pieces, and where three of its points lie on a line, all points
between them do. It jumps only where messages become too large for the latency of small ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from hpcpar.cost.network.links import FloatArray

#: Largest distance from a line, relative to the time, of points that count as on it.
ON_LINE = 1e-11
#: Relative distance from a jump within which rounding decides, so that no line may stand for it.
NEAR = 1e-9


class Curve:
    """Points of a convex curve of straight pieces, without a jump."""

    def __init__(self) -> None:
        self._x: list[float] = []
        self._y: list[float] = []
        #: Points from which a straight piece leads to the next point.
        self._straight: set[float] = set()

    def at(self, x: float, function: Callable[[float], float]) -> float:
        """The value at x; calls the function unless x lies on a straight piece."""
        i = bisect_left(self._x, x)
        if i < len(self._x) and self._x[i] == x:
            return self._y[i]
        if 0 < i < len(self._x) and self._x[i - 1] in self._straight:
            return self._line(i - 1, i, x)
        self._x.insert(i, x)
        self._y.insert(i, function(x))
        for middle in range(max(1, i - 1), min(i + 2, len(self._x) - 1)):
            self._join(middle)
        return self._y[i]

    def _line(self, first: int, last: int, x: float) -> float:
        """The value at x of the line through two points."""
        x0, x1, y0, y1 = self._x[first], self._x[last], self._y[first], self._y[last]
        return y0 + (y1 - y0) * ((x - x0) / (x1 - x0))

    def _join(self, middle: int) -> None:
        """Note if a point and its neighbors are on a line; then no point between them is farther
        from it than this point is, times the ratio of distances.
        """
        x0, x, x1 = self._x[middle - 1:middle + 2]
        off = abs(self._y[middle] - self._line(middle - 1, middle + 1, x))
        if off <= ON_LINE * abs(self._y[middle]) * min(x - x0, x1 - x) / (x1 - x0):
            self._straight |= {x0, x}


class Pieces:
    """A function of sizes that is convex between jumps, evaluated at few sizes."""

    def __init__(self, function: Callable[[FloatArray], FloatArray], jumps: FloatArray) -> None:
        self._function, self._jumps = function, jumps
        self._curves: dict[int, Curve] = defaultdict(Curve)

    def __call__(self, sizes: FloatArray) -> FloatArray:
        """The values at sizes in ascending order, of which the ends and middles come first."""
        out = np.empty(len(sizes))
        below, above = (np.searchsorted(self._jumps * (1 + side * NEAR), sizes)
                        for side in (-1, 1))
        for i in _ends_first(len(sizes)):
            x = float(sizes[i])
            out[i] = (self._curves[int(below[i])].at(x, self._one) if below[i] == above[i] else
                      self._one(x))
        return out

    def _one(self, size: float) -> float:
        return float(self._function(np.array([size]))[0])


def _ends_first(count: int) -> list[int]:
    """The numbers below count: the ends, then the middle, the quarters, and so on."""
    steps = [max(1, count >> bits) for bits in range(count.bit_length())]
    return list(dict.fromkeys([count - 1] * (count > 0) + [
        i for step in steps for i in range(0, count, step)]))
