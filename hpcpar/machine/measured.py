"""A machine's table of measured work: looked up, and between batches that were measured a straight
line.

A key begins with the kind of work and the local shapes, the number of samples (of an update: of
weights) first: ``conv2d.forward x=8x64x32x32 y=8x128x32x32 k=3x3 ...``. Keys that differ in that
number alone are one line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

#: Where a key has its number of samples.
_SAMPLES = re.compile(r"(?<= [xy]=)\d+")
#: Kind of work in which a single sample is not a smaller case of the others: BLAS multiplies a
#: vector in another way, several times as fast.
_PRODUCT = "linear."
#: So many times fewer or more samples than were measured still count as measured.
REACH = 2.0


class Time(NamedTuple):
    """Seconds of a piece of work, and whether measurements reach so far."""

    seconds: float
    reached: bool


def line_of(key: str) -> tuple[str, int]:
    """A key without its number of samples, and that number."""
    found = _SAMPLES.search(key)
    if found is None:
        return key, 0
    return _SAMPLES.sub("*", key), int(found[0])


class Measured:
    """Times of pieces of work by their keys.

    Parameters
    ----------
    table : mapping
        Key -> seconds.
    least_s : float
        What a piece of work takes that has next to nothing to do.
    """

    def __init__(self, table: Mapping[str, float], least_s: float) -> None:
        self._table, self._least_s = table, least_s
        points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for key, seconds in table.items():
            line, samples = line_of(key)
            points[line].append((samples, seconds))
        for line, each in points.items():
            if line.startswith(_PRODUCT) and len(each) > 1:
                points[line] = [point for point in each if point[0] > 1]
        self._lines = {line: np.array(sorted(each), float).T for line, each in points.items()}

    def time(self, key: str) -> Time | None:
        """The seconds of a key, or of others that differ in the number of samples alone; None
        where nothing is known.

        Between two measured numbers of samples the time is that of the straight line through them.
        Beyond them it changes as the number does, but for the constant part that the line through
        the nearest two has.
        """
        exact = self._table.get(key)
        if exact is not None:
            return Time(exact, True)
        line, n = line_of(key)
        if line not in self._lines:
            return None
        samples, seconds = self._lines[line]
        reached = bool(samples[0] / REACH <= n <= samples[-1] * REACH)
        if samples[0] < n < samples[-1]:
            return Time(float(np.interp(n, samples, seconds)), reached)
        end = 0 if n < samples[0] else -1
        constant = min(self._least_s, seconds[end])
        if len(samples) > 1:
            inner = 1 if end == 0 else -2
            slope = (seconds[end] - seconds[inner]) / (samples[end] - samples[inner])
            # noise must make no time negative, nor let more samples take less of it
            constant = min(max(seconds[end] - slope * samples[end], constant), seconds[end])
        return Time(float(constant + (seconds[end] - constant) * n / samples[end]), reached)
