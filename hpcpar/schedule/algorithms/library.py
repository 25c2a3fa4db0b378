"""The collectives of the MPI library, or of NCCL where NCCL moves the messages."""

from __future__ import annotations

from functools import reduce

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.algorithms.base import SCATTERED, Algorithm, Collective, Each, Round, Routed
from hpcpar.schedule.steps import Kind


class Library(Algorithm):
    """The library hides its messages: a collective counts as one, with the member's own
    contribution, and is priced as the fastest of the `known` algorithms.
    """

    name = "mpi"
    kinds = (Kind.ALLREDUCE, *SCATTERED)
    library = True

    def __init__(self, known: tuple[Algorithm, ...]) -> None:
        self._known = known

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        return []

    def wire_order(self, p: int, me: Each, inner: int) -> IntArray:
        """MPI requires group order."""
        return np.arange(p)

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        return reduce(np.minimum, (
            entry.seconds(kind, n_bytes, segments, route, add_s_per_byte)
            for entry in self._known if kind in entry.kinds))
