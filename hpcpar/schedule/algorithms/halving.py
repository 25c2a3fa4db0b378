"""Members exchange parts that halve or double: Rabenseifner's allreduce, and its two halves.

With p members, n bytes, alpha and beta of the links between partners, and gamma (s/byte) the cost
of adding:

allreduce
    2 (ceil(log2 p) + w) alpha + 2 n (p - 1) / p beta + n (p - 1) / p gamma, where w rounds wrap
    around the end of the buffer and send two messages (only if p is not a power of two)
allgather, reduce-scatter
    ceil(log2 p) alpha + n (p - 1) / p beta, plus the additions of a reduce-scatter
with m members in each node (hierarchical)
    a reduce-scatter of n in the node, the collective of n / m between p / m nodes, an allgather of
    n in the node, if the collective has these phases; all members of a node work at once
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.schedule.algorithms.base import (
    SCATTERED,
    Algorithm,
    Collective,
    Each,
    Message,
    Round,
    adjoint,
)
from hpcpar.schedule.steps import Kind


class Halving(Algorithm):
    """ceil(log2 p) exchanges of parts that double or halve; the nearest members exchange the most.

    An allgather is recursive doubling between partners, then Bruck's algorithm for the odd factor
    of p; a reduce-scatter is its adjoint, recursive halving. An allreduce does both. With `inner`
    members per node it is hierarchical: a reduce-scatter in the node, an allreduce of n / inner
    items between nodes, an allgather in the node.
    """

    name = "halving"
    kinds = (Kind.ALLREDUCE, *SCATTERED)
    by_nodes = True
    together = True

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        p, inner = collective.p, collective.inner
        whole = collective.kind is Kind.ALLREDUCE
        at: IntArray = collective.bounds
        if not (whole or collective.alike):
            sizes = np.diff(at)[self.wire_order(p, me, inner)]
            at = np.concatenate([np.zeros_like(sizes[:1]), sizes.cumsum(axis=0)])
        gather = [r for stage in reversed(_stages(p, me, inner, not whole))
                  for r in stage.gathering(me, at)]
        summing = [] if collective.kind is Kind.ALLGATHER else adjoint(gather)
        return [*summing, *gather] if whole else summing or gather

    def wire_order(self, p: int, me: Each, inner: int) -> IntArray:
        """Within each stage, this member's block first, then around the stage."""
        order, stride = np.zeros((1, *np.shape(me)), np.int64), 1
        for size in radices(p, inner):
            around = (me // stride + np.arange(size).reshape(-1, *[1] * np.ndim(me))) % size
            order = (order[:, None] + around * stride).reshape(-1, *np.shape(me))
            stride *= size
        return order



def radices(p: int, inner: int = 1) -> tuple[int, ...]:
    """Sizes of the stages of halving, nearest members first.

    First the `inner` members of a node, then the nodes; each gives its factors of two, then its odd
    factor.
    """
    out: list[int] = []
    for size in (inner, p // inner):
        while size % 2 == 0:
            out.append(2)
            size //= 2
        out += [size] * (size > 1)
    return tuple(out)


def _doublings(size: int) -> list[tuple[int, int]]:
    """The distance of each exchange of a stage, and the number of parts that it moves."""
    distances = [1 << r for r in range((size - 1).bit_length())]
    return [(distance, min(distance, size - distance)) for distance in distances]


@dataclass(frozen=True)
class _HalvingStage:
    """A stage of halving: members that differ in one digit of their index exchange parts.

    Attributes
    ----------
    size, stride, digit
        Members of the stage, their distance in the group, and this member's index among them.
    own, base, width
        Index of the member's own part, the block where the parts begin, and blocks per part.
    """

    size: int
    stride: int
    digit: Each
    own: Each
    base: Each
    width: int

    def gathering(self, me: Each, at: IntArray) -> Iterator[Round]:
        """The rounds of an allgather: exchanges at doubling distances."""
        for distance, count in _doublings(self.size):
            yield Round(self._messages(me, -distance, 0, count, at),
                        self._messages(me, distance, distance, count, at))

    def _messages(self, me: Each, distance: int, first: int, count: int,
                  at: IntArray) -> tuple[Message, ...]:
        """Parts `first` to `first + count`, counted around from the member's own part, to or from
        the member at `distance`; two messages where they wrap around the end of the wire.
        """
        peer = me + ((self.digit + distance) % self.size - self.digit) * self.stride
        start = (self.own + first) % self.size
        stop = np.minimum(start + count, self.size)

        def place(part: Each) -> Each:
            block = self.base + part * self.width
            return at[block] if at.ndim == 1 else at[block, np.arange(at.shape[1])]

        return (Message(peer, place(start), place(stop)),
                Message(peer, place(0), place(start + count - stop)))


def _stages(p: int, me: Each, inner: int, rotated: bool) -> list[_HalvingStage]:
    """The stages of halving; in a rotated wire, each stage has the member's own part first."""
    out: list[_HalvingStage] = []
    stride, width = 1, p
    base: Each = 0
    for size in radices(p, inner):
        digit = me // stride % size
        own, width = 0 if rotated else digit, width // size
        out.append(_HalvingStage(size, stride, digit, own, base, width))
        base, stride = base + own * width, stride * size
    return out
