"""Jitter and slow ranks: deviations of compute times from the machine's figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcpar.cost.network.links import FloatArray
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine

#: Interquartile range of a normal distribution, in standard deviations.
_QUARTILES = 1.349


@dataclass(frozen=True)
class Noise:
    """Jitter and slow ranks.

    Attributes
    ----------
    jitter : float
        Relative standard deviation of a compute step's time. Each step, rank and iteration draws
        from a log-normal distribution.
    slow : ndarray or None
        [ranks] slowdown of each rank.
    """

    jitter: float = 0.0
    slow: FloatArray | None = None
    seed: int = 0

    def on(self, seconds: FloatArray, repeats: int, generator: np.random.Generator) -> FloatArray:
        """A step's seconds with noise, [repeats, ranks], from those without noise, [ranks]."""
        slowed = seconds if self.slow is None else seconds * self.slow
        out = np.broadcast_to(slowed, (repeats, len(seconds)))
        if not self.jitter:
            return out
        variance = np.log1p(self.jitter ** 2)
        drawn = generator.standard_normal(out.shape)
        return out * np.exp(np.sqrt(variance) * drawn - variance / 2)


QUIET = Noise()


def jitter_on(machine: Machine, jitter: float | str) -> float:
    """Jitter as a number; text stands for the median jitter of the machine's measured steps.

    Raises
    ------
    InputError
        The machine has no measured jitter.
    """
    if not isinstance(jitter, str):
        return jitter
    compute = machine.quality.get("compute")
    spread = compute.get("spread") if isinstance(compute, Mapping) else None
    if not isinstance(spread, (int, float)):
        raise InputError(f"{machine.name} has no measured jitter; calibrate it with: hpcpar "
                         "calibrate --for plan.json, or give a number, as in --jitter 0.05")
    return float(spread) / _QUARTILES


def slow_ranks(machine: Machine, ranks: int, units: Mapping[str, float]) -> FloatArray | None:
    """Slowdown of each rank, [ranks]; None if no rank is slow.

    Parameters
    ----------
    units : mapping
        Unit -> slowdown. A unit is a rank (``rank5``) or a unit of a machine's level (``node3``).

    Raises
    ------
    InputError
        The job does not have such a unit.
    """
    sizes = {"rank": 1} | {level.name: level.ranks or ranks for level in machine.levels}
    out = np.ones(ranks)
    for unit, factor in units.items():
        parts = re.fullmatch(r"(.*?)(\d+)", unit)
        size = sizes.get(parts[1]) if parts else None
        first = size * int(parts[2]) if parts and size else ranks
        if size is None or first >= ranks:
            last = ", ".join(f"{level}{(ranks - 1) // n}" for level, n in sizes.items())
            raise InputError(f"this job has no unit '{unit}': units are numbered from 0, and the "
                             f"last ones are {last}")
        out[first:first + size] *= factor
    return out if units else None
