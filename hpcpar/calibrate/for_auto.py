"""Calibration for the search (``hpcpar calibrate --for auto``): search, measure the compute steps
of the leading plans, and search again until the choice is stable.

OptCNN measures tC of every configuration of every layer. This module measures only the compute
steps of plans that may be the fastest.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

from hpcpar.calibrate.calibrate import Calibration
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import Plan
from hpcpar.search.candidates import Candidate

#: Estimates of compute times are rarely too long by more than this factor.
TOO_LONG = 1.5
#: Number of plans to measure before the next search.
PLANS_PER_SEARCH = 4
#: Returns the candidates for a machine, best first.
Search = Callable[[Machine], list[Candidate]]


class Contender(NamedTuple):
    """A plan that may be the fastest."""

    candidate: Candidate
    #: Estimated time per iteration (s) of each unmeasured piece of work, by its key.
    estimated_s: dict[str, float]


@dataclass(frozen=True)
class AutoChoice:
    """The final choice of the search."""

    strategy: str
    iteration_s: float
    #: Number of searches.
    searches: int
    #: Measured pieces of work, and all pieces of work, of the plans near the fastest.
    measured: int
    shapes: int
    #: False if time ran out before all contenders were measured.
    stands: bool


class Contest:
    """The searches so far, on rank 0."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._searches, self._stands = 0, False
        self._shapes: set[str] = set()

    def contenders(self, machine: Machine) -> list[Contender]:
        """Plans with unmeasured work that may be the fastest.

        They are the fastest now, or would be if estimates were too long by `TOO_LONG`.
        """
        self._searches += 1
        candidates = self._search(replace(machine, trusts_estimates=True))
        candidates = [c for c in candidates if c.fits == candidates[0].fits]
        best_s = min(c.iteration_s for c in candidates)
        contenders = []
        for c in candidates:
            if c.iteration_s > TOO_LONG * best_s:
                continue
            spent_s = seconds_of_work(c)
            self._shapes |= spent_s.keys()
            estimated_s = {key: s for key, s in spent_s.items() if key not in machine.compute}
            least_s = c.iteration_s - (1 - 1 / TOO_LONG) * sum(estimated_s.values())
            if estimated_s and (c.iteration_s == best_s or least_s < best_s):
                contenders.append(Contender(c, estimated_s))
        self._stands = not contenders
        return contenders

    def next_plans(self, machine: Machine, left_s: float,
                   expected_s: Callable[[Plan, Machine], float]) -> list[Plan]:
        """The plans to measure next, the most informative first.

        Empty if the choice is stable, or if `left_s` is too short for any measurement.
        """
        contenders, plans = self.contenders(machine), list[Plan]()
        while contenders and len(plans) < PLANS_PER_SEARCH:
            best = most_informative(contenders)
            contenders = [c for c in contenders if c is not best]
            measuring_s = expected_s(best.candidate.plan, machine)
            if measuring_s <= left_s:
                left_s -= measuring_s
                plans.append(best.candidate.plan)
                contenders = unmeasured(contenders, best)
        return plans

    def choice(self, machine: Machine) -> AutoChoice:
        """The choice of ``hpcpar plan`` on the calibrated machine."""
        best = self._search(machine)[0]
        measured = len(self._shapes & machine.compute.keys())
        return AutoChoice(best.strategy, best.iteration_s, self._searches, measured,
                          len(self._shapes), self._stands)


def seconds_of_work(candidate: Candidate) -> dict[str, float]:
    """Time per iteration (s) of every piece of work, by its key."""
    network, plan = candidate.task.network, candidate.plan
    work = WorkIndex(network, plan, candidate.costs.schedule)
    return work.totals([float(price.seconds) for price in candidate.costs.prices])


def most_informative(contenders: Sequence[Contender]) -> Contender:
    """The contender whose unmeasured work takes the largest share of all contenders' iterations."""
    share: dict[str, float] = defaultdict(float)
    for c in contenders:
        for key, seconds in c.estimated_s.items():
            share[key] += seconds / c.candidate.iteration_s
    return max(contenders, key=lambda c: sum(share[key] for key in c.estimated_s))


def unmeasured(contenders: Sequence[Contender], measured: Contender) -> list[Contender]:
    """The contenders that still have unmeasured work after the measurement of `measured`."""
    rest = [Contender(c.candidate, {key: s for key, s in c.estimated_s.items()
                                    if key not in measured.estimated_s}) for c in contenders]
    return [c for c in rest if c.estimated_s]


def calibrate_for_auto(calibration: Calibration, search: Search,
                       budget_s: float) -> tuple[Machine, AutoChoice]:
    """Alternates searches and measurements until the choice is stable or the time is up.

    All ranks get the same result.
    """
    world, contest = calibration.world, Contest(search)
    deque(calibration.visits([]), maxlen=0)
    while True:
        machine, left_s = calibration.machine(), budget_s - calibration.elapsed_s
        plans = world.first(partial(contest.next_plans, machine, left_s, calibration.expected_s))
        if not plans:
            break
        for number in calibration.visits(plans, links=False):
            # `expected_s` may be too short: stop after a complete round.
            if number == len(plans) - 1 and calibration.elapsed_s > budget_s:
                break
    choice = world.first(partial(contest.choice, machine))
    return replace(machine, quality={**machine.quality, "search": asdict(choice)}), choice
