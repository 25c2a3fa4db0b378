"""Decides which collective algorithms there are, by name."""

from __future__ import annotations

from typing import TypeVar

from hpcpar.errors import require_free
from hpcpar.plan.plan import COLLECTIVES
from hpcpar.schedule.algorithms.base import Algorithm
from hpcpar.schedule.algorithms.direct import Direct
from hpcpar.schedule.algorithms.doubling import Doubling
from hpcpar.schedule.algorithms.halving import Halving
from hpcpar.schedule.algorithms.hosted import Hosted
from hpcpar.schedule.algorithms.leaders import Leaders
from hpcpar.schedule.algorithms.library import Library
from hpcpar.schedule.algorithms.ring import Ring
from hpcpar.schedule.steps import Kind

T = TypeVar("T", bound=type[Algorithm])

#: Name -> entry.
ALGORITHMS: dict[str, Algorithm] = {
    entry.name: entry for entry in (
        Ring(), Doubling(), Halving(), Direct(), Leaders(), Library(), Hosted())
}


def algorithms_of(kind: Kind) -> tuple[str, ...]:
    """The algorithms that implement a kind of collective among ranks, except the library's own."""
    return tuple(name for name, entry in ALGORITHMS.items()
                 if kind in entry.kinds and not (entry.library or entry.priced_only))


def collective_algorithm(made: T) -> T:
    """Register an algorithm: plans may name it, and the cost model may choose it.

    Raises
    ------
    InputError
        Another module registers this name.
    """
    known = ALGORITHMS.get(made.name)
    owner = "hpcpar.plan.plan" if made.name in COLLECTIVES else None
    require_free("collective algorithm", made.name, type(known).__module__ if known else owner,
                 made.__module__)
    ALGORITHMS[made.name] = made()
    COLLECTIVES[made.name] = (made.name,)
    return made
