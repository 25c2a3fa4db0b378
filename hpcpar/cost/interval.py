"""The 90% interval of a predicted time, from those of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpcpar.cost.price_family import Costs
from hpcpar.machine.model import Machine, Ratios

#: A time's low and high end (s).
Interval90 = tuple[float, float]


def interval_s(total_s: float, parts: Iterable[tuple[float, Ratios]]) -> Interval90:
    """The 90% interval of a time.

    Assumed is that what slows one step slows all steps of its part alike (the machine's speed
    drifts), and that parts deviate independently of each other: within a part deviations add up,
    those of parts as squares.

    Parameters
    ----------
    parts : iterable of (float, (float, float))
        Seconds of a part, and the 90% interval of its measured over its predicted time.
    """
    below = above = 0.0
    for seconds, (low, high) in parts:
        below += (seconds * max(0.0, 1.0 - low)) ** 2
        above += (seconds * max(0.0, high - 1.0)) ** 2
    return max(0.0, total_s - math.sqrt(below)), total_s + math.sqrt(above)


def of_iteration(machine: Machine, costs: Costs) -> Interval90 | None:
    """The 90% interval of an iteration of a single plan; None where the machine has none of a part.

    The parts are measured computing, estimated computing, and the exposed communication of each
    level. A pipeline's bubble counts as computing.
    """
    exposed_s = [0.0] * len(machine.levels)
    for step, seconds in zip(costs.steps, costs.timeline.waits_s, strict=True):
        exposed_s[int(step.level)] += float(seconds)
    total_s, waits_s = float(costs.iteration_s), float(costs.exposed_communication_s)
    of_all_stages = sum(exposed_s) or 1.0
    rest_s, measured = total_s - waits_s, float(costs.measured_compute)
    parts = [(rest_s * measured, machine.compute_ratios),
             (rest_s * (1.0 - measured), machine.estimate_ratios)]
    parts += [(waits_s * seconds / of_all_stages, level.ratios)
              for seconds, level in zip(exposed_s, machine.levels, strict=True)]
    taking = [(seconds, ratios) for seconds, ratios in parts if seconds > 0]
    known = [(seconds, ratios) for seconds, ratios in taking if ratios is not None]
    return interval_s(total_s, known) if len(known) == len(taking) else None
