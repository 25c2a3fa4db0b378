"""90% intervals of the ratio of measured to predicted times, by cross-validation on samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from hpcpar.calibrate.samples import Samples, concatenated
from hpcpar.cost.compute.step_time import plain_roofline_s
from hpcpar.cost.compute.work import Work
from hpcpar.machine.model import Device, Ratios


def interval(ratios: Sequence[float], weights: Sequence[float] | None = None) -> Ratios | None:
    """The 90% prediction interval of the next ratio; None from fewer than three ratios.

    The logarithms of the ratios are assumed to be normally distributed around 0. Student's t
    accounts for their small number.
    """
    if len(ratios) < 3:
        return None
    logs = np.log(ratios)
    z, free = NormalDist().inv_cdf(0.95), len(logs) - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    width = t * math.sqrt(float(np.average(logs**2, weights=weights)))
    return math.exp(-width), math.exp(width)


def of_compute(visits_of_plans: Iterable[Sequence[Samples]]) -> Ratios | None:
    """Measured compute steps: each visit of a plan, predicted from its other visits."""
    ratios, weights = [], []
    for visits in visits_of_plans:
        for i, visit in enumerate(visits if len(visits) > 1 else ()):
            others = concatenated([*visits[:i], *visits[i + 1:]])
            visit_s, others_s = (sum(samples.table().values()) for samples in (visit, others))
            if visit_s > 0 and others_s > 0:
                ratios.append(visit_s / others_s)
                weights.append(others_s)
    return interval(ratios, weights)


def of_estimates(device: Device, works: Iterable[Work],
                 table: Mapping[str, float]) -> Ratios | None:
    """Estimated compute steps: each is predicted by its roofline and the others of its kind."""
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for work in works:
        roofline_s = float(plain_roofline_s(device, work))
        if roofline_s > 0 and table.get(work.key):
            kinds[work.sort].append((table[work.key], roofline_s))
    ratios, weights = [], []
    for pairs in kinds.values():
        measured_s, expected_s = (sum(values) for values in zip(*pairs, strict=True))
        for work_s, roofline_s in pairs if len(pairs) > 1 else ():
            factor = (measured_s - work_s) / (expected_s - roofline_s)
            ratios.append(work_s / (factor * roofline_s))
            weights.append(work_s)
    return interval(ratios, weights)


def of_timers(samples_of_timers: Iterable[Sequence[float]]) -> Ratios | None:
    """Communication: the median of each timer's later samples, predicted by its earlier samples."""
    halves = [(s[: len(s) // 2], s[len(s) // 2:]) for s in samples_of_timers if len(s) > 1]
    return interval([float(np.median(later) / np.median(earlier)) for earlier, later in halves])
