"""Decides how time passes for a program and for the network beside it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from hpcpar.plan.config import Floats


def later(a: Floats, b: Floats) -> Floats:
    """The later of two times, for each plan."""
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


class ProgramClock:
    """The program's time, and the network's time, which measures the progress of communication.

    Parameters
    ----------
    rate : float
        Speed of the network's clock while the program computes.

    Attributes
    ----------
    program_s, network_s : float
        Equal if `rate` is 1.
    marks_s : dict
        The program's times at which the network's clock shows the times given to `mark`.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.program_s: Floats = 0.0
        self.network_s: Floats = 0.0
        self.marks_s: dict[Hashable, Floats] = {}
        self._open: dict[Hashable, Floats] = {}

    def mark(self, key: Hashable, at_s: Floats) -> None:
        """Record in `marks_s` when the network's clock shows a time, now or later."""
        self.marks_s[key] = at_s
        if self.rate < 1.0:
            self._open[key] = at_s
            self.marks_s[key] = np.where(np.less_equal(at_s, self.network_s), self.program_s,
                                         np.inf)

    def compute(self, seconds: Floats) -> None:
        """Compute; communication progresses at `rate`."""
        self._advance(seconds, self.rate)

    def drive(self, seconds: Floats) -> None:
        """Handle messages, or idle; communication progresses at full speed."""
        self._advance(seconds, 1.0)

    def reach(self, at_s: Floats) -> Floats:
        """Wait until the network's clock shows a time; returns the seconds waited."""
        left = later(at_s - self.network_s, 0.0)
        if self.rate == 1.0:
            self.program_s = self.network_s = later(at_s, self.network_s)
        else:
            self._advance(left, 1.0)
        return left

    def _advance(self, seconds: Floats, rate: float) -> None:
        before_s, self.program_s = self.program_s, self.program_s + seconds
        if self.rate == 1.0:
            self.network_s = self.program_s
            return
        from_s, self.network_s = self.network_s, self.network_s + rate * seconds
        for key, at_s in list(self._open.items()):
            past = np.less_equal(at_s, self.network_s)
            self.marks_s[key] = np.where(past & np.isinf(self.marks_s[key]),
                                         before_s + (at_s - from_s) / rate, self.marks_s[key])
            if np.all(past):
                del self._open[key]
