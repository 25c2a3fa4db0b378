"""The MPI library runs the collective, or NCCL where NCCL moves the messages."""

from __future__ import annotations

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.schedule.algorithms.base import SCATTERED, Algorithm, Collective, Each, Round
from hpcpar.schedule.steps import Kind


class Library(Algorithm):
    """The library hides its messages: a collective counts as one, with the member's own
    contribution, and is priced as the fastest of the algorithms `priced_as`.
    """

    name = "mpi"
    kinds = (Kind.ALLREDUCE, *SCATTERED)
    hidden = kinds
    library = True

    priced_as = ("ring", "doubling", "halving")

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        return []

    def wire_order(self, p: int, me: Each, inner: int) -> IntArray:
        """MPI requires group order."""
        return np.arange(p)
