"""Decides which candidate is the answer: the simplest of those about as fast as the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.cost.ratios import Priced, Ratio, Sized, speedup, times_as_long
from hpcpar.search.candidates import MUCH_SLOWER, SHOWN, Candidate

#: The strategies that are simpler, and less simple, than all others.
SIMPLEST, LAYER_BY_LAYER = "data", "layerwise"


def sized(candidate: Candidate) -> Sized:
    """The candidate by its size."""
    t = candidate.task
    return Sized(t.ranks, t.batch, candidate.iteration_s, candidate.prediction.trust.ratios)


def times_as_fast(one: Candidate, than: Candidate) -> Ratio:
    """Samples per second of a candidate, relative to another's of the same network and machine."""
    if one.task.ranks != than.task.ranks:
        return speedup(sized(one), sized(than))
    longer = times_as_long(one.task.machine, Priced(than.plan, than.costs),
                           Priced(one.plan, one.costs))
    return longer.times(one.task.batch / than.task.batch)


def simplicity(candidate: Candidate) -> tuple[int, int, float]:
    """Sort key: fewer ranks come first, then data parallelism, named strategies, and last plans
    layer by layer; the fastest of each.
    """
    kinds = {SIMPLEST: 0, LAYER_BY_LAYER: 2}
    return candidate.task.ranks, kinds.get(candidate.strategy, 1), candidate.iteration_s


def simplest(candidates: Sequence[Candidate], fastest: Candidate) -> Candidate:
    """The simplest candidate that fits and is as good as the fastest (`Ratio.as_good`)."""
    if not fastest.fits:
        return fastest
    limit_s = MUCH_SLOWER * fastest.iteration_s / fastest.task.batch
    near = [c for c in candidates
            if c.iteration_s / c.task.batch <= limit_s and c.speed[0] == fastest.speed[0]
            and c.fits]
    equal = [c for c in near if c is fastest or times_as_fast(c, fastest).as_good]
    return min(equal, key=simplicity)


def chosen(candidates: Sequence[Candidate]) -> Candidate:
    """The simplest candidate that is about as fast per sample as the fastest that fits."""
    return simplest(candidates, min(candidates, key=lambda c: (not c.fits, *_speed(c))))


def rivals(candidates: Sequence[Candidate], choice: Candidate) -> list[Candidate]:
    """The candidates beside which the choice's speed is stated, without those that do not fit.

    They are data parallelism on the same ranks and the fastest of all; where the choice is both,
    the second.
    """
    if not choice.fits:
        return []
    others = sorted((c for c in candidates if c is not choice and c.fits), key=_speed)
    data = [c for c in others if c.strategy == SIMPLEST and c.task.ranks == choice.task.ranks]
    faster = [c for c in others[:1] if _speed(c) < _speed(choice) and c not in data]
    return data[:1] + faster or others[:1]


def _speed(c: Candidate) -> tuple[bool, float]:
    """Sort key: the time of an iteration per sample, as `Candidate.speed`."""
    return c.speed[0], c.iteration_s / c.task.batch


def compared(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The first `SHOWN`, which have exact prices, and data parallelism."""
    return [*candidates[:SHOWN], *(c for c in candidates[SHOWN:] if c.strategy == SIMPLEST)]


def choice_first(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in `Candidate.order`, but the simplest of those that are about as fast as the
    fastest comes first.
    """
    choice = simplest(compared(candidates), candidates[0])
    return [choice, *(c for c in candidates if c is not choice)]
