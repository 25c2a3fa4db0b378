"""Decides at which sizes a movement is walked: few, because its time is convex in the size.

A time is a maximum over chains of messages, and each chain's time grows by a constant rate. So a
curve of times consists of straight pieces, and where three of its points lie on a line, all points
between them do. It jumps only where messages become too large for the latency of small ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpcpar.cost.network.links import FloatArray

#: Largest distance from a line, relative to the time, of points that count as on it.
ON_LINE = 1e-11
#: Relative distance from a jump within which rounding decides, so that no line may stand for it.
NEAR = 1e-9


@dataclass
class Curve:
    """Points of a convex curve of straight pieces, without a jump, in ascending order.

    A straight piece leads from each of the places `straight` to the next point.
    """

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    straight: set[float] = field(default_factory=set)

    def at(self, x: float, function: Callable[[FloatArray], FloatArray]) -> float:
        """The value at x; calls the function unless x lies on a straight piece.

        If a point is as good as on the line through its neighbors, no point between them is farther
        from that line than this one is, times the ratio of distances.
        """
        i = bisect_left(self.x, x)
        if i < len(self.x) and self.x[i] == x:
            return self.y[i]
        if 0 < i < len(self.x) and self.x[i - 1] in self.straight:
            return float(np.interp(x, self.x[i - 1:i + 1], self.y[i - 1:i + 1]))
        self.x.insert(i, x)
        self.y.insert(i, float(function(np.array([x]))[0]))
        for k in range(max(1, i - 1), min(i + 2, len(self.x) - 1)):
            (x0, x1, x2), y1 = self.x[k - 1:k + 2], self.y[k]
            off = abs(y1 - np.interp(x1, (x0, x2), self.y[k - 1:k + 2:2]))
            if off <= ON_LINE * abs(y1) * min(x1 - x0, x2 - x1) / (x2 - x0):
                self.straight |= {x0, x1}
        return self.y[i]


@dataclass
class Pieces:
    """A function of sizes that is convex between jumps, evaluated at few sizes."""

    function: Callable[[FloatArray], FloatArray]
    jumps: FloatArray
    curves: dict[int, Curve] = field(default_factory=lambda: defaultdict(Curve))

    def __call__(self, sizes: FloatArray) -> FloatArray:
        """The values at sizes in ascending order."""
        below = np.searchsorted(self.jumps * (1 - NEAR), sizes)
        above = np.searchsorted(self.jumps * (1 + NEAR), sizes)
        out, step = np.empty(len(sizes)), len(sizes)
        order = [*range(step)[-1:]]
        while step:  # the ends, the middle, the quarters, and so on
            order += range(0, len(sizes), step)
            step //= 2
        for i in dict.fromkeys(order):
            curve = self.curves[int(below[i])] if below[i] == above[i] else Curve()
            out[i] = curve.at(float(sizes[i]), self.function)
        return out
