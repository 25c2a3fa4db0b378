"""Measured iterations that correct the times of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.io.schema import Extent, Line, Positive, Word


@dataclass(frozen=True)
class TimeFactors:
    """Factors on a machine's times.

    Attributes
    ----------
    computing : float
        Factor on compute steps.
    loss : float
        Factor on what several ranks lose: times of messages, and the wait for the slowest device.
    """

    computing: Positive = 1.0
    loss: Positive = 1.0


@dataclass(frozen=True)
class Anchor:
    """A measured iteration.

    Attributes
    ----------
    name : str
        The measurement in words.
    strategy, precision : str
        How the iteration was split, and its number format.
    machine : str
        The machine, if it is another one than the one it corrects; else empty.
    measured_s, predicted_s, fitted_s : float
        Measured time, predicted time without anchors, and with the factors of all anchors.
    exact : TimeFactors
        Factors that give the measured time.
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


@dataclass(frozen=True)
class Anchoring:
    """The anchors of a machine, and their factors.

    Attributes
    ----------
    applied : TimeFactors
        Factors that the machine's times contain.
    fitted : TimeFactors
        Factors that fit all anchors.
    """

    applied: TimeFactors = TimeFactors()
    fitted: TimeFactors = TimeFactors()
    anchors: tuple[Anchor, ...] = ()
