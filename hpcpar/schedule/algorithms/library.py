"""The collectives of the MPI library, or of NCCL where NCCL moves the messages."""

from __future__ import annotations

from functools import reduce

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.algorithms.base import SCATTERED, Algorithm, Collective, Round, Routed
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

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        return []

    def wire_order(self, p: int, me: int, inner: int) -> list[int]:
        """MPI requires group order."""
        return list(range(p))

    def sent(self, collective: Collective) -> tuple[IntArray, IntArray]:
        sizes = np.array(collective.sizes, np.int64)
        if collective.kind is Kind.REDUCE_SCATTER:
            sizes = np.full_like(sizes, sizes.sum())
        return np.full_like(sizes, collective.p > 1), sizes * (collective.p > 1)

    def busiest(self, kind: Kind, p: Ints, items: Ints, blocks: tuple[Ints, Ints], segments: Ints,
                inner: Ints) -> tuple[Ints, Ints]:
        messages: Ints = np.minimum(1, p - 1)
        if kind is Kind.ALLGATHER:
            items = blocks[1]
        return messages, messages * items

    def landing_items(self, kind: Kind, p: Ints, n: Ints, block: Ints) -> Ints:
        """A reduce-scatter needs a separate buffer for its result."""
        return block if kind is Kind.REDUCE_SCATTER else 0

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        return reduce(np.minimum, (
            entry.seconds(kind, n_bytes, segments, route, add_s_per_byte)
            for entry in self._known if kind in entry.kinds))
