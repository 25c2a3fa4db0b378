"""Plans that fit in memory: micro-batches in 1F1B order, and recomputation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from hpcpar.plan.plan import PipelineOrder
from hpcpar.search.candidates import Candidate, best_of, in_order, of_plan

#: Numbers of recomputed segments that are tried.
SEGMENTS = (2, 4, 8, 16, 32)
#: Numbers of micro-batches that are tried go up to this; each costs steps to plan and to run.
MOST_MICROBATCHES = 1024
#: The fastest candidates that do not fit, which are made to fit.
FASTEST = 3


def made_to_fit(chosen: Candidate) -> Candidate | None:
    """The fastest variation of a plan that fits; None where none does.

    Micro-batches are doubled until the plan fits, up to `MOST_MICROBATCHES`, and recomputed
    segments as well, each alone; where neither suffices, both together. Options that the caller has
    fixed stay.
    """
    plan, fixed = chosen.plan, chosen.task.plan_options
    chosen.task.tell(f"making {chosen.strategy} fit in memory")
    segments = () if plan.recompute else SEGMENTS
    doublings = 1 if "microbatches" in fixed else plan.batch.bit_length()
    numbers = [plan.microbatches << i for i in range(doublings)]
    numbers = [number for number in numbers if number <= max(numbers[0], MOST_MICROBATCHES)]
    order = PipelineOrder.ONE_FORWARD_ONE_BACKWARD
    several = [number for number in numbers if number > 1]
    each = [
        _first_that_fits(chosen.with_options(microbatches=number, order=order)
                         for number in several),
        _first_that_fits(chosen.with_options(recompute=count) for count in segments),
    ]
    found = [c for c in each if c is not None]
    if not found:
        both = _first_that_fits(
            chosen.with_options(microbatches=number, order=order, recompute=count)
            for number, count in product(several, segments))
        found = [] if both is None else [both]
    if not found:
        return None
    fastest = min(found, key=lambda c: c.order)
    return best_of([fastest, of_plan(fastest.task, fastest.plan)])  # the best buckets may differ


def _first_that_fits(candidates: Iterable[Candidate]) -> Candidate | None:
    return next((c for c in candidates if c.fits and not c.refusal), None)


def with_variations(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates, the best first, and variations of the fastest ones that do not fit."""
    first = candidates[0]
    faster = [c for c in candidates if not (first.fits and c.speed >= first.speed) and not c.fits]
    made = [made_to_fit(c) for c in sorted(faster, key=lambda c: c.speed)[:FASTEST]]
    return in_order([*candidates, *(c for c in made if c is not None)])
