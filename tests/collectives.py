"""Rounds of collectives, for tests."""

from __future__ import annotations

from hpcpar.schedule.algorithms import base
from hpcpar.schedule.algorithms.base import Collective, Round
from hpcpar.schedule.algorithms.registry import ALGORITHMS, algorithms_of
from hpcpar.schedule.steps import Kind

#: The algorithms for each kind of collective, except the MPI library's.
BY_KIND = {kind: algorithms_of(kind) for kind in (
    Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER, Kind.REDUCE, Kind.BROADCAST)}


def rounds_of(kind: Kind, algorithm: str, sizes: tuple[int, ...], me: int, segments: int,
              inner: int = 1, root: int = 0) -> list[Round]:
    """The rounds of member `me`."""
    collective = Collective(kind, sizes, segments, inner, root)
    return list(base.rounds_of(ALGORITHMS[algorithm], collective, me))
