"""Decides how a plan is made to fit in memory: micro-batches in 1F1B order, or recomputation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from hpcpar.plan.plan import PipelineOrder
from hpcpar.search.candidates import Candidate, best_of, in_order, of_plan

#: Numbers of recomputed segments to try.
SEGMENTS = (2, 4, 8, 16, 32)
#: Largest number of micro-batches to try; each adds steps to plan and to run.
MOST_MICROBATCHES = 1024
#: Number of candidates to vary: the fastest that do not fit.
FASTEST = 3


def made_to_fit(chosen: Candidate) -> Candidate | None:
    """The fastest variation of a plan that fits, or None.

    Micro-batches are doubled until the plan fits, up to `MOST_MICROBATCHES`; separately, recomputed
    segments are doubled. If neither suffices, both are combined. Options that the caller has fixed
    stay.
    """
    plan, fixed = chosen.plan, chosen.task.plan_options
    chosen.task.tell(f"making {chosen.strategy} fit in memory")
    segments = SEGMENTS if chosen.task.training and not plan.recompute else ()
    doublings = 1 if "microbatches" in fixed else plan.batch.bit_length()
    numbers = [plan.microbatches << i for i in range(doublings)]
    numbers = [number for number in numbers if number <= max(numbers[0], MOST_MICROBATCHES)]
    order = PipelineOrder.ONE_FORWARD_ONE_BACKWARD
    numbers = [number for number in numbers if number > 1]
    variations = [
        _first_that_fits(chosen.with_options(microbatches=number, order=order)
                         for number in numbers),
        _first_that_fits(chosen.with_options(recompute=count) for count in segments),
    ]
    if not any(variations):
        variations = [_first_that_fits(
            chosen.with_options(microbatches=number, order=order, recompute=count)
            for number, count in product(numbers, segments))]
    fitting = [c for c in variations if c is not None]
    if not fitting:
        return None
    fastest = min(fitting, key=lambda c: c.order)
    return best_of([fastest, of_plan(fastest.task, fastest.plan)])  # the best buckets may differ


def _first_that_fits(candidates: Iterable[Candidate]) -> Candidate | None:
    return next((c for c in candidates if not c.refusal and c.fits), None)


def with_variations(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in order, with fitting variations of faster ones that do not fit."""
    first = candidates[0]
    faster = [c for c in candidates if not (first.fits and c.speed >= first.speed) and not c.fits]
    variations = [made_to_fit(c) for c in sorted(faster, key=lambda c: c.speed)[:FASTEST]]
    return in_order([*candidates, *(c for c in variations if c is not None)])
