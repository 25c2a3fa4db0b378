"""Decides the 90% interval of a predicted time, from the intervals of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hpcpar.cost.price_family import Costs
from hpcpar.machine.model import Machine, Ratios

#: Low and high end of a time (s).
Interval90 = tuple[float, float]


def interval_s(total_s: float, parts: Iterable[tuple[float, Ratios]]) -> Interval90:
    """The 90% interval of a time.

    All steps of a part deviate alike, because the machine's speed drifts; their deviations add up.
    Different parts deviate independently; their squared deviations add up.

    Parameters
    ----------
    parts : iterable of (float, (float, float))
        Seconds of a part, and the 90% interval of the ratio of measured to predicted time.
    """
    below = above = 0.0
    for seconds, (low, high) in parts:
        below += (seconds * max(0.0, 1.0 - low)) ** 2
        above += (seconds * max(0.0, high - 1.0)) ** 2
    return max(0.0, total_s - math.sqrt(below)), total_s + math.sqrt(above)


class Part(NamedTuple):
    """A part of an iteration; `ratios` is the interval of measured to predicted time, if known."""

    name: str
    seconds: float
    ratios: Ratios | None


def parts_of(machine: Machine, costs: Costs) -> list[Part]:
    """The parts of a single plan's iteration that take time.

    They are measured computation, estimated computation, and the exposed communication of each
    level. A pipeline's bubble counts as computation.
    """
    exposed_s = [0.0] * len(machine.levels)
    for price, seconds in zip(costs.prices, costs.timeline.waits_s, strict=True):
        exposed_s[int(price.level)] += float(seconds)
    total_s, waits_s = float(costs.iteration_s), float(costs.exposed_communication_s)
    of_all_stages = sum(exposed_s) or 1.0
    rest_s, measured = total_s - waits_s, float(costs.measured_compute)
    parts = [Part("computing", rest_s * measured, machine.compute_ratios),
             Part("computing", rest_s * (1.0 - measured), machine.estimate_ratios)]
    parts += [Part(f"level '{level.name}'", waits_s * seconds / of_all_stages, level.ratios)
              for seconds, level in zip(exposed_s, machine.levels, strict=True)]
    return [part for part in parts if part.seconds > 0]
