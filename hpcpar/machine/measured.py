"""Measurements of a machine: factors of messages, and a table of work.

The lookup in the table interpolates linearly in the number of samples.

A key begins with the kind of work and the local shapes, whose first number counts samples (weights
for updates): ``conv2d.forward x=8x64x32x32 y=8x128x32x32 k=3x3 ...``. Keys that differ only in that
number form one line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcpar.errors import InputError
from hpcpar.io.schema import Positive

#: The number of samples in a key.
_SAMPLES = re.compile(r"(?<= [xy]=)\d+")
#: Kind of work whose line excludes a single sample: for a vector, BLAS has another product that is
#: several times as fast.
_PRODUCT = "linear."
#: Extrapolation by up to this factor in the number of samples counts as measured.
REACH = 2.0


@dataclass(frozen=True)
class Factors:
    """Ratio of measured to alpha-beta times of a collective or of direct messages.

    Attributes
    ----------
    level, kind, algorithm : str
        Names of the level that the groups cross, the collective and the algorithm
        (`hpcpar.schedule.steps`); ``direct`` for halos and redistributions.
    bytes : tuple of float
        Increasing sizes of the whole buffer; for direct messages, bytes that the busiest rank sends
        or receives.
    factors : tuple of float
        Ratio at each size; interpolated in the logarithm of the size, constant beyond the ends.
    """

    level: str
    kind: str
    algorithm: str
    bytes: tuple[Positive, ...]
    factors: tuple[Positive, ...]

    def __post_init__(self) -> None:
        increasing = list(self.bytes) == sorted(set(self.bytes))
        if not self.bytes or len(self.bytes) != len(self.factors) or not increasing:
            raise InputError("'bytes' and 'factors' must have the same length, and bytes must "
                             "increase; write them with: hpcpar calibrate")


class Time(NamedTuple):
    """Seconds of a piece of work, and whether they are within reach of the measurements."""

    seconds: float
    reached: bool


def line_of(key: str) -> tuple[str, int]:
    """A key without its number of samples, and that number."""
    samples = _SAMPLES.search(key)
    return (key, 0) if samples is None else (_SAMPLES.sub("*", key), int(samples[0]))


class Measured:
    """Measured times of pieces of work by key.

    Parameters
    ----------
    table : mapping
        Key -> seconds.
    least_s : float
        Time of a piece of work with next to nothing to do.
    """

    def __init__(self, table: Mapping[str, float], least_s: float) -> None:
        self._table, self._least_s = table, least_s
        points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for key, seconds in table.items():
            line, samples = line_of(key)
            points[line].append((samples, seconds))
        for line, measured in points.items():
            if line.startswith(_PRODUCT) and len(measured) > 1:
                points[line] = [point for point in measured if point[0] > 1]
        self._lines = {line: np.array(sorted(measured), float).T
                       for line, measured in points.items()}

    def time(self, key: str) -> Time | None:
        """The time of a key, measured or from keys on the same line; None if there are none.

        Between two measured numbers of samples, the time is interpolated linearly. Beyond them, it
        is a constant plus a part proportional to the number of samples; the constant is the
        intercept of the line through the nearest two measurements.
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
            # keeps noise from making times negative, or shorter for more samples
            constant = min(max(seconds[end] - slope * samples[end], constant), seconds[end])
        return Time(float(constant + (seconds[end] - constant) * n / samples[end]), reached)
