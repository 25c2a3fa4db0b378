"""Rounds and prices of collectives, for tests."""

from __future__ import annotations

from typing import Any

from hpcpar.cost.network.contention import Route
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


def collective_s(kind: Kind, algorithm: str, n_bytes: Any, segments: Any, way: Route,
                 add_s_per_byte: float = 0.0) -> Any:
    """Time of a collective (s) in closed form."""
    return ALGORITHMS[algorithm].priced_s(kind, n_bytes, segments, way, add_s_per_byte)
