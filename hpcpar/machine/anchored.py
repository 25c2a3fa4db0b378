"""Measured iterations that correct the times of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.io.schema import Extent, Line, Positive, Word


@dataclass(frozen=True)
class TimeFactors:
    """Factors on a machine's times."""

    #: On compute steps.
    computing: Positive = 1.0
    #: On what several ranks lose: times of messages, and the wait for the slowest device.
    loss: Positive = 1.0


#: The factors of a machine without anchors.
NOT_ANCHORED = TimeFactors()


@dataclass(frozen=True)
class Anchor:
    """A measured iteration, the machine if another was measured, and its times: measured, by the
    model alone, and with the factors of all anchors. The factors `exact` give the measured time.
    """

    name: Line
    ranks: Extent
    batch: Extent
    strategy: Word
    precision: Word
    machine: str
    measured_s: Positive
    predicted_s: Positive
    fitted_s: Positive
    exact: TimeFactors

    @property
    def residual(self) -> float:
        """Measured over fitted time, minus 1."""
        return self.measured_s / self.fitted_s - 1.0


@dataclass(frozen=True)
class Anchoring:
    """The anchors of a machine, the factors that fit them, and those that its times contain."""

    applied: TimeFactors = NOT_ANCHORED
    fitted: TimeFactors = NOT_ANCHORED
    anchors: tuple[Anchor, ...] = ()
