"""Corrects a machine's times by measured iterations (anchors), and says how far to trust them.

The model keeps its shape. Two factors fit the anchors: one on computing, one on the loss, which is
everything that several ranks take beyond one rank's computing. `posterior` shrinks them towards 1.
An anchor's own case takes the factors that give its measured time, and a single anchor gives them
to all cases. Other number formats and devices take their power ``share``: the share of an anchor's
deviation that published runs at this distance have in common. For other batches and numbers of
ranks it is 1, so that their times keep the model's ratios. ``bench/gallery/anchored.py`` writes
``anchors.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources

import numpy as np

from hpcpar.io.schema import Count, Positive, Share, convert, parse_toml
from hpcpar.machine.anchored import Anchor, Anchoring, TimeFactors
from hpcpar.machine.model import Machine, Ratios

#: Relative standard error of a measured iteration.
MEASUREMENT_ERROR = 0.03
#: Standard deviations from the middle to an end of a 90% interval.
ENDS_90 = 1.645
#: The 90% interval of a measured iteration.
MEASURED_RATIOS = math.exp(-ENDS_90 * MEASUREMENT_ERROR), math.exp(ENDS_90 * MEASUREMENT_ERROR)
#: The distance to anchors on two numbers of ranks, which fit the loss too.
MORE_RANKS = "number of ranks, with two anchored"
#: Step of the logarithm of the loss between prices; times between them are interpolated.
LOSS_STEP = 0.25
#: Most updates of `posterior`, largest change in one, and the change that ends it.
UPDATES, LARGEST_CHANGE, LEAST_CHANGE = 60, 0.5, 1e-4


@dataclass(frozen=True)
class AnchoredRuns:
    """Published runs that others anchor: the distance between them, the share of an anchor's
    deviation that carries over, and the 90% interval and median of measured over anchored times.
    """

    name: str
    rows: Count
    share: Share
    low: Positive
    median: Positive
    high: Positive


@dataclass(frozen=True)
class AnchoredResiduals:
    """All distances; standard deviations of the logarithm of measured over predicted loss, and of
    the ratio of two runs whose batches differ by a factor of 2.
    """

    loss_sd: Positive
    doubling_sd: Positive
    distances: tuple[AnchoredRuns, ...]


@lru_cache(maxsize=1)
def anchored_residuals() -> AnchoredResiduals:
    """The figures that come with the package."""
    text = (resources.files("hpcpar.cost") / "anchors.toml").read_bytes()
    return convert(parse_toml(text, "anchors.toml", ""), AnchoredResiduals, "anchors.toml", "")


def posterior(times: Sequence[Callable[[float], float]], measured_s: Sequence[float],
              sd: tuple[float, float]) -> TimeFactors:
    """Factors of computing and loss, from measured times.

    The logarithms x of both factors have independent normal priors around 0 with the standard
    deviations `sd`, which is the model's own uncertainty. A measured time has the error
    e = `MEASUREMENT_ERROR`: log measured = log predicted(x) + e, with the slopes S of log predicted
    in x. Conjugate updates x = (sd^-2 + S'S / e^2)^-1 S'r / e^2, with r = log measured -
    log predicted(x) + S x, are repeated until x stays. For a single rank, this is
    x = sd^2 / (sd^2 + e^2) log(measured / predicted).

    Parameters
    ----------
    times : sequence of callable
        For each measurement, maps a factor on the loss to the predicted time (s). If both factors
        are f times as large, so is the time.
    sd : (float, float)
        Of the logarithm of the factor on computing, and on the loss.
    """
    priced = [cache(lambda k, of=of: math.log(of(math.exp(k * LOSS_STEP)))) for of in times]
    logs_s, x, weight = np.log(measured_s), np.zeros(2), MEASUREMENT_ERROR ** -2
    for _ in range(UPDATES):
        steps, k = (x[1] - x[0]) / LOSS_STEP, math.floor((x[1] - x[0]) / LOSS_STEP)
        low, high = np.array([(of(k), of(k + 1)) for of in priced]).T
        slope = (high - low) / LOSS_STEP
        slopes = np.stack([1.0 - slope, slope], axis=1)
        off = logs_s - (x[0] + low + (high - low) * (steps - k)) + slopes @ x
        found = np.linalg.solve(np.diag(np.power(sd, -2.0)) + weight * slopes.T @ slopes,
                                weight * slopes.T @ off)
        change = np.clip(found - x, -LARGEST_CHANGE, LARGEST_CHANGE)
        x = x + change
        if np.abs(change).max() < LEAST_CHANGE:
            break
    return TimeFactors(*np.exp(x).tolist())


def with_factors(machine: Machine, factors: TimeFactors) -> Machine:
    """The machine with other factors on its times."""
    if factors == machine.factors:
        return machine
    by, host = factors.loss / machine.factors.loss, machine.host
    host = host and replace(host, alpha_s=by * host.alpha_s,
                            beta_s_per_byte=by * host.beta_s_per_byte,
                            memory_bytes_per_s=host.memory_bytes_per_s / by)
    return replace(
        machine, levels=tuple(level.times(by, by) for level in machine.levels), host=host,
        add_s_per_byte=by * machine.add_s_per_byte, copy_s_per_byte=by * machine.copy_s_per_byte,
        anchored=replace(machine.anchored or Anchoring(), applied=factors))


def nearest(anchoring: Anchoring, ranks: int, batch: int,
            precision: str) -> tuple[Anchor, AnchoredRuns | None]:
    """The anchor that leaves the narrowest interval, and its distance: None for its own case."""
    known = {runs.name: runs for runs in anchored_residuals().distances}
    several = len({anchor.ranks for anchor in anchoring.anchors}) > 1
    found = [(anchor, known.get(_distance(anchor, ranks, batch, precision, several)))
             for anchor in anchoring.anchors]
    return min(found, key=lambda each: each[1].high / each[1].low if each[1] else 0.0)


def _distance(anchor: Anchor, ranks: int, batch: int, precision: str, several: bool) -> str:
    """The distance between an anchor and a case by name; empty for the anchor's own case."""
    if anchor.machine:
        return "device"
    if anchor.precision != precision:
        return "number format"
    more = [] if anchor.ranks == ranks else ["number of ranks"]
    if anchor.batch * ranks != batch * anchor.ranks:
        more.append("batch")
    return MORE_RANKS if several and more == ["number of ranks"] else " and ".join(more)


def in_case(machine: Machine, ranks: int, batch: int, precision: str) -> Machine:
    """The machine with the factors of its anchors for a case."""
    if machine.anchored is None or not machine.anchored.anchors:
        return machine
    anchor, runs = nearest(machine.anchored, ranks, batch, precision)
    if runs is None:
        return with_factors(machine, anchor.exact)
    fitted = machine.anchored.fitted
    return with_factors(
        machine, TimeFactors(fitted.computing ** runs.share, fitted.loss ** runs.share))


def sd_of(ratios: Ratios) -> float:
    """Standard deviation of the logarithm of a ratio with this 90% interval."""
    low, high = (max(end, LEAST_CHANGE) for end in ratios)
    return max(LEAST_CHANGE, math.log(high / low) / (2 * ENDS_90))
