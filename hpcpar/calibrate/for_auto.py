"""Calibration of what the search chooses (``hpcpar calibrate --for auto``): search, measure the
compute steps of the plans that lead, search again, until the choice stands.

OptCNN measures tC of every configuration of every layer. Here only the pieces of work of plans that
may turn out to be the fastest are measured.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

from hpcpar.calibrate.calibrate import Calibration
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import Plan
from hpcpar.search.candidates import Candidate

#: Estimates of work are seldom too long by more than this factor.
TOO_LONG = 1.5
#: Plans that are measured before the next search.
AT_A_TIME = 4
#: From a machine to candidates, the best first.
Search = Callable[[Machine], list[Candidate]]


class Contender(NamedTuple):
    """A plan that may turn out to be the fastest.

    Attributes
    ----------
    estimated_s : dict
        By the key of every piece of work that is not measured: estimated seconds in an iteration.
    """

    candidate: Candidate
    estimated_s: dict[str, float]


@dataclass(frozen=True)
class AutoChoice:
    """The choice of the search in the end.

    Attributes
    ----------
    searches : int
        Searches until then.
    measured, shapes : int
        Pieces of work that were measured, of all those of the plans near the fastest.
    stands : bool
        False where the budget was spent before all contenders were measured.
    """

    strategy: str
    iteration_s: float
    searches: int
    measured: int
    shapes: int
    stands: bool


class Contest:
    """The searches so far, on rank 0."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._searches, self._stands = 0, False
        self._shapes: set[str] = set()

    def contenders(self, machine: Machine) -> list[Contender]:
        """Plans with work that is not measured: the fastest, and those that would be if estimates
        were too long by `TOO_LONG`.
        """
        self._searches += 1
        found = self._search(replace(machine, trusts_estimates=True))
        found = [c for c in found if c.fits == found[0].fits]
        best_s = min(c.iteration_s for c in found)
        out = []
        for c in found:
            if c.iteration_s > TOO_LONG * best_s:
                continue
            spent_s = seconds_of_work(c)
            self._shapes |= spent_s.keys()
            estimated_s = {key: s for key, s in spent_s.items() if key not in machine.compute}
            least_s = c.iteration_s - (1 - 1 / TOO_LONG) * sum(estimated_s.values())
            if estimated_s and (c.iteration_s == best_s or least_s < best_s):
                out.append(Contender(c, estimated_s))
        self._stands = not out
        return out

    def next_plans(self, machine: Machine, left_s: float,
                   expected_s: Callable[[Plan, Machine], float]) -> list[Plan]:
        """The plans to measure next, those that tell most first; none where the choice stands, or
        nothing more can be measured in `left_s`.
        """
        contenders, plans = self.contenders(machine), list[Plan]()
        while contenders and len(plans) < AT_A_TIME:
            best = most_telling(contenders)
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
    """Seconds that an iteration spends on every piece of work, by its key."""
    network, plan = candidate.task.network, candidate.plan
    work = WorkIndex(network, plan, schedule_for(network, plan))
    return work.totals([float(step.seconds) for step in candidate.costs.steps])


def most_telling(contenders: Sequence[Contender]) -> Contender:
    """The contender whose pieces of work take the largest shares of all contenders' iterations."""
    share: dict[str, float] = defaultdict(float)
    for c in contenders:
        for key, seconds in c.estimated_s.items():
            share[key] += seconds / c.candidate.iteration_s
    return max(contenders, key=lambda c: sum(share[key] for key in c.estimated_s))


def unmeasured(contenders: Sequence[Contender], measured: Contender) -> list[Contender]:
    """The contenders that still have unmeasured work once `measured` is measured."""
    left = [Contender(c.candidate, {key: s for key, s in c.estimated_s.items()
                                    if key not in measured.estimated_s}) for c in contenders]
    return [c for c in left if c.estimated_s]


def calibrate_for_auto(calibration: Calibration, search: Search,
                       budget_s: float) -> tuple[Machine, AutoChoice]:
    """Measures links and rates, then what the best plans compute, until the choice stands or the
    budget is spent. All ranks get the same.
    """
    world, contest = calibration.world, Contest(search)
    deque(calibration.visits([]), maxlen=0)
    while True:
        machine, left_s = calibration.found(), budget_s - calibration.elapsed_s
        plans = world.first(partial(contest.next_plans, machine, left_s, calibration.expected_s))
        if not plans:
            break
        for number in calibration.visits(plans, links=False):
            # after a whole round: estimates of what measuring takes may be too short
            if number == len(plans) - 1 and calibration.elapsed_s > budget_s:
                break
    choice = world.first(partial(contest.choice, machine))
    return replace(machine, quality={**machine.quality, "search": asdict(choice)}), choice
