"""Decides which strategies are searches: their configurations depend on machine and batch."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.errors import InputError
from hpcpar.plan.strategy import Configs, Grid, Strategy, StrategyRequest
from hpcpar.search.candidates import Candidate
from hpcpar.search.task import PlanningTask

#: Plans and prices a problem, on the strategy's grid if it has one.
Planner = Callable[[PlanningTask, Grid], Candidate]
#: The searches behind the strategies that `searched` registers.
SEARCHES: dict[str, Planner] = {}


def searched(entry: Strategy) -> Callable[[Planner], Planner]:
    """Register a search as the strategy `entry`."""
    def register(search: Planner) -> Planner:
        def refuse(request: StrategyRequest) -> Configs:
            raise InputError(f"strategy '{entry.name}' depends on machine and batch; use hpcpar "
                             "plan, or name another strategy")

        refuse.__module__ = search.__module__
        entry(refuse)
        SEARCHES[entry.name] = search
        return search

    return register
