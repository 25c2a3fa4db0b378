"""Decides how sure the ratio of two plans' times is: its 90% interval.

Plans on one machine share its errors, so that their ratio is surer than either time. The following
deviations are independent, and their squared logarithms add up:

* Measured times differ from run to run (`MEASUREMENT_ERROR`).
* Losses (times of several ranks beyond computing) deviate by one factor for both plans, as in
  published runs on several devices. The timelines are laid out again at its ends.
* A layer whose parts are r times as large deviates by r to the power of one unknown exponent, as
  published runs of r times the batch do. Layers that both plans cut alike cancel.
* Runs on other numbers of ranks deviate as published ones do.

On a machine that has measured all parts of both plans, their intervals replace published runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcpar.cost.anchors import (
    ENDS_90,
    LEAST_CHANGE,
    MEASUREMENT_ERROR,
    anchored_residuals,
    sd_of,
    with_factors,
)
from hpcpar.cost.compute.step_time import slowest
from hpcpar.cost.price_family import Costs, laid_out
from hpcpar.cost.trust import COMPUTING, Part, parts_of
from hpcpar.machine.model import Machine, Ratios
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Comm

#: Share of the predicted speed that a simpler plan may give up: wide intervals contain 1, too.
MOST_GIVEN_UP = 0.1
#: Axes along which a layer's part is a part of its output or reduction.
_AXES = ("n", "d", "h", "w", "c", "k")


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 90% interval."""

    value: float
    low: float
    high: float

    @property
    def about_equal(self) -> bool:
        """True if the interval contains 1."""
        return self.low <= 1 <= self.high

    @property
    def as_good(self) -> bool:
        """True for a speed about equal to another's that is at most `MOST_GIVEN_UP` lower."""
        return self.about_equal and self.value >= 1 - MOST_GIVEN_UP

    def times(self, factor: float) -> Ratio:
        """The ratio times a known factor."""
        return Ratio(factor * self.value, factor * self.low, factor * self.high)

    def to_json(self, name: str) -> dict[str, float]:
        """The ratio as JSON data: `name`, `name`_low and `name`_high."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


#: A deviation: the logarithms of a ratio's lower and upper end over its middle.
Deviation = tuple[float, float]
_NOISE: Deviation = -ENDS_90 * MEASUREMENT_ERROR, ENDS_90 * MEASUREMENT_ERROR


def _combined(value: float, deviations: Iterable[Deviation]) -> Ratio:
    low, high = np.array([(min(0.0, *ends), max(0.0, *ends)) for ends in deviations]).T
    return Ratio(value, value * math.exp(-np.linalg.norm(low)),
                 value * math.exp(np.linalg.norm(high)))


# -- runs by their size ----------------------------------------------------------------------------
class Sized(NamedTuple):
    """A run's number of ranks, mini-batch, predicted time, and interval of measured over predicted
    time.
    """

    ranks: int
    batch: int
    iteration_s: float
    ratios: Ratios

    @property
    def share(self) -> float:
        """Samples on each rank."""
        return self.batch / self.ranks


def speedup(one: Sized, over: Sized) -> Ratio:
    """Samples per second, relative to another run of the same network and machine."""
    value = one.batch / one.iteration_s * over.iteration_s / over.batch
    if one == over:
        return Ratio(value, value, value)
    own = _combined(value, [_ends(*one.ratios), _ends(*over.ratios)])
    by_class = _combined(value, [_doublings(abs(math.log2(one.share / over.share))),
                                 _NOISE if one.ranks == over.ranks else _other_ranks()])
    return min(own, by_class, key=lambda ratio: ratio.high / ratio.low)


def _ends(low: float, high: float) -> Deviation:
    """The deviation of an interval, whose lower end may be 0."""
    return math.log(max(low, LEAST_CHANGE)), math.log(high)


def _other_ranks() -> Deviation:
    known = {runs.name: runs for runs in anchored_residuals().distances}
    runs = known["number of ranks"]
    return _ends(runs.low, runs.high)


def _doublings(count: float) -> Deviation:
    """The deviation of parts that are 2^count times as large or small."""
    end = ENDS_90 * anchored_residuals().doubling_sd * count
    return -end, end


# -- plans on the same ranks -----------------------------------------------------------------------
class Priced(NamedTuple):
    """A plan and its exact costs."""

    plan: Plan
    costs: Costs

    @property
    def iteration_s(self) -> float:
        return float(self.costs.iteration_s)


def times_as_long(machine: Machine, one: Priced, than: Priced) -> Ratio:
    """Time of a plan's iteration over another plan's, on the same ranks."""
    changes = _changes(one, than)
    parts = parts_of(machine, one.costs), parts_of(machine, than.costs)
    if machine.compute and all(part.ratios for each in parts for part in each):
        changed = sum(share for share, doublings in changes if doublings)
        deviations = _of_parts(one.iteration_s, than.iteration_s, *parts, changed)
    else:
        deviations = [_doublings(sum(share * doublings for share, doublings in changes)),
                      _of_loss(machine, one, than)]
    return _combined(one.iteration_s / than.iteration_s, [_NOISE, *deviations])


def _changes(one: Priced, than: Priced) -> list[tuple[float, float]]:
    """For each layer, its mean share of the iterations, and the doublings of its part's size."""
    network = one.costs.out.edges.network
    seconds = [priced.costs.seconds_of_layers() for priced in (one, than)]
    return [(sum(float(of_layer[layer.name]) / priced.iteration_s
                 for of_layer, priced in zip(seconds, (one, than), strict=True)) / 2,
             _resized(one.plan, than.plan, layer.name)) for layer in network.layers]


def _resized(one: Plan, than: Plan, layer: str) -> float:
    """Doublings of a layer's part along the axis that changes most."""
    def parts(plan: Plan, axis: str) -> float:
        passes = plan.batch / plan.samples_of_a_pass if axis == "n" else 1
        return passes * float(getattr(plan.configs[layer], axis))

    return max(abs(math.log2(parts(one, axis) / parts(than, axis))) for axis in _AXES)


def _of_parts(one_s: float, than_s: float, one: Sequence[Part], than: Sequence[Part],
              changed: float) -> list[Deviation]:
    """The deviations of measured parts: of the `changed` share of computing, whose layers are cut
    differently, and of the difference in each level's share.
    """
    sds, shares = dict[str, float](), dict[str, float]()
    for sign, whole_s, parts in ((1, one_s, one), (-1, than_s, than)):
        for part in parts:
            assert part.ratios is not None
            sds[part.name] = max(sds.get(part.name, 0.0), sd_of(part.ratios))
            shares[part.name] = shares.get(part.name, 0.0) + sign * part.seconds / whole_s
    ends = [ENDS_90 * sd * (changed if name == COMPUTING else shares[name])
            for name, sd in sds.items()]
    return [(-end, end) for end in ends]


def _of_loss(machine: Machine, one: Priced, than: Priced) -> Deviation:
    """The deviation that a common factor on both plans' losses makes."""
    plain = _log_s(machine, one, 1.0) - _log_s(machine, than, 1.0)
    least, most = (math.exp(sign * ENDS_90 * anchored_residuals().loss_sd) for sign in (-1, 1))
    return (_log_s(machine, one, least) - _log_s(machine, than, least) - plain,
            _log_s(machine, one, most) - _log_s(machine, than, most) - plain)


def _log_s(machine: Machine, priced: Priced, loss: float) -> float:
    """Logarithm of a plan's iteration (s) with its losses times a factor."""
    known, ranks = machine.factors, priced.plan.ranks
    factors = replace(known, loss=loss * known.loss)
    slow = (slowest(machine.device, ranks, factors.loss / factors.computing)
            / slowest(machine.device, ranks, known.loss / known.computing))
    steps, changed = priced.costs.schedule.steps, []
    for step, price in priced.costs.pairs:
        by = loss if isinstance(step, Comm) else slow
        changed.append(price._replace(seconds=by * price.seconds, latency_s=by * price.latency_s))
    line = laid_out(with_factors(machine, factors), priced.plan, steps, changed)
    return math.log(max(float(line.total_s), float(priced.costs.io_s)))
