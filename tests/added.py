"""Two collective algorithms, defined by their rounds as a user would add them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcpar.extend import Algorithm, Collective, Kind, Round, collective_algorithm, message
from hpcpar.plan.plan import COLLECTIVES
from hpcpar.schedule.algorithms.registry import ALGORITHMS


class Star(Algorithm):
    """Member 0 adds the buffers of all others and sends them the sum."""

    name = "star"
    kinds = (Kind.ALLREDUCE,)

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        p, n = collective.p, collective.sizes[0]
        others = tuple(m for peer in range(1, p) for m in message(peer, 0, n))
        if me == 0:
            return [Round((), others, reduce=True), Round(others, ())]
        return [Round(message(0, 0, n), ()), Round((), message(0, 0, n))]


class Pairwise(Algorithm):
    """Every member sends its buffer to all others in one round: the lowest latency for three."""

    name = "pairwise"
    kinds = (Kind.ALLREDUCE,)

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        p, n = collective.p, collective.sizes[0]
        others = tuple(m for j in range(1, p) for m in message((me + j) % p, 0, n))
        return [Round(others, others, reduce=True)]


@contextmanager
def added(algorithm: type[Algorithm]) -> Iterator[None]:
    """Registers an algorithm until the end of the block."""
    collective_algorithm(algorithm)
    try:
        yield
    finally:
        del ALGORITHMS[algorithm.name], COLLECTIVES[algorithm.name]
