"""Jitter and slow ranks: deviations of computing from the machine's times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.simulation.links import FloatArray

#: Distance of the quartiles of a normal distribution, over its standard deviation.
_QUARTILES = 1.349


@dataclass(frozen=True)
class Noise:
    """Jitter and slow ranks.

    Attributes
    ----------
    jitter : float
        Standard deviation of a compute step's time over its mean: log-normal, drawn anew for each
        step, rank and iteration.
    slow : ndarray or None
        [ranks] how many times slower each computes.
    seed : int
    """

    jitter: float = 0.0
    slow: FloatArray | None = None
    seed: int = 0

    def on(self, seconds: FloatArray, repeats: int, generator: np.random.Generator) -> FloatArray:
        """A step's seconds on every rank, [repeats, ranks], given those without noise, [ranks]."""
        slowed = seconds if self.slow is None else seconds * self.slow
        out = np.broadcast_to(slowed, (repeats, len(seconds)))
        if not self.jitter:
            return out
        variance = np.log1p(self.jitter ** 2)
        drawn = generator.standard_normal(out.shape)
        return out * np.exp(np.sqrt(variance) * drawn - variance / 2)


QUIET = Noise()


def jitter_on(machine: Machine, jitter: float | str) -> float:
    """Jitter as a number; text stands for that of the middle one of the machine's measured steps.

    Raises
    ------
    InputError
        The machine has none.
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
    """How many times slower each rank computes; None where none does.

    Parameters
    ----------
    units : mapping
        Factor by unit: ``rank5``, or a level of the machine and the number of its unit (``node3``).

    Raises
    ------
    InputError
        There is no such unit in the job.
    """
    sizes = {"rank": 1} | {level.name: level.ranks or ranks for level in machine.levels}
    out = np.ones(ranks)
    for unit, factor in units.items():
        found = re.fullmatch(r"(.*?)(\d+)", unit)
        size = sizes.get(found[1]) if found else None
        first = size * int(found[2]) if found and size else ranks
        if size is None or first >= ranks:
            last = ", ".join(f"{name}{(ranks - 1) // each}" for name, each in sizes.items())
            raise InputError(f"this job has no unit '{unit}': units are numbered from 0, and the "
                             f"last ones are {last}")
        out[first:first + size] *= factor
    return out if units else None
