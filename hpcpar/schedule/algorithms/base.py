"""An algorithm of collectives: one entry says all that planning, pricing and running ask of it.

`Algorithm.rounds` is the one description of the messages. The communicator executes these rounds
and nothing else; the trace, the bytes, the memory of messages and the simulation are sums over
them. An entry may give closed forms of the sums, for groups and families of plans whose tables of
messages would be too large; tests hold each against the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.boxes import block
from hpcpar.plan.config import Flags, Floats, Ints, Numbers
from hpcpar.schedule.steps import Kind

#: Kinds that end or begin at one member, and those whose members each have a block of their own.
ROOTED = (Kind.REDUCE, Kind.BROADCAST)
SCATTERED = (Kind.ALLGATHER, Kind.REDUCE_SCATTER)


@dataclass(frozen=True)
class Message:
    """`start:stop` of the wire buffer, to or from a member of the group.

    In point-to-point patterns the member index is the rank.
    """

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Round:
    """Messages that travel together. Rounds of a member start and complete in order.

    Attributes
    ----------
    sends, recvs : tuple of Message
    reduce : bool
        Received items are added to the wire buffer instead of replacing it.
    """

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]
    reduce: bool = False


def message(peer: int, start: int, stop: int) -> tuple[Message, ...]:
    """A message, if it has any items."""
    return (Message(peer, start, stop),) if stop > start else ()


@dataclass(frozen=True)
class Collective:
    """A collective of one group.

    Attributes
    ----------
    sizes : tuple of int
        Items of each member's block, in group order; of an allreduce, a reduction or a broadcast
        every entry is the whole buffer's size.
    segments : int
        Pieces of a message, where the algorithm cuts messages.
    inner : int
        Members of the group in each node, where the algorithm goes by nodes; else 1.
    root : int
        The member that a reduction ends at, or a broadcast begins at.
    """

    kind: Kind
    sizes: tuple[int, ...]
    segments: int = 1
    inner: int = 1
    root: int = 0

    @property
    def p(self) -> int:
        """Members."""
        return len(self.sizes)

    @classmethod
    def of(cls, kind: Kind, p: int, items: int, segments: int = 1, inner: int = 1,
           root: int = 0) -> Collective:
        """A collective on `items` in all, in blocks as equal as they can be."""
        if kind not in SCATTERED:
            return cls(kind, (items,) * p, segments, inner, root)
        bounds = [block(items, p, i) for i in range(p)]
        return cls(kind, tuple(stop - start for start, stop in bounds), segments, inner, root)


class LinkTimes(Protocol):
    """Links of one kind: the time of a message."""

    def latency_s(self, message_bytes: Numbers) -> Floats: ...

    def message_s(self, message_bytes: Numbers) -> Floats: ...


class Routed(Protocol):
    """The links of a group's messages.

    `p` are the members. `far` joins the neighbours of a ring, `hop` partners at 2^doubling, or
    `around` the group every member and the one 2^doubling further on. `crosses` is true where
    members differ in the links between them. `split` are the routes inside nodes and between them;
    None where no group has runs of members in nodes. `factor` is measured time over modelled time;
    None where nothing was measured. `table_s` are the seconds of an algorithm's messages one by
    one, and of the slowest message of all, in the cases `where`; elsewhere nan.
    """

    @property
    def p(self) -> Ints: ...

    @property
    def far(self) -> LinkTimes: ...

    @property
    def crosses(self) -> Flags: ...

    def hop(self, doubling: int, around: bool = False) -> LinkTimes: ...

    @property
    def split(self) -> tuple[Routed, Routed] | None: ...

    def factor(self, kind: Kind, algorithm: str, n_bytes: Numbers) -> Floats | None: ...

    def table_s(self, algorithm: Algorithm, kind: Kind, n_bytes: Numbers, segments: Ints,
                add_s_per_byte: float, where: Flags) -> tuple[Floats, Floats]: ...


class Algorithm:
    """An algorithm of collectives. A new one needs `name`, `kinds` and `rounds`.

    Attributes
    ----------
    kinds : tuple of Kind
        The collectives that it does.
    library : bool
        The MPI library (or NCCL) does the collective itself, by messages that nobody sees.
    by_nodes : bool
        `Collective.inner` matters.
    block_by_block : bool
        A message of an allgather or a reduce-scatter holds (a piece of) one member's block, so that
        blocks may lie in the tensor itself, apart from each other.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    library: ClassVar[bool] = False
    by_nodes: ClassVar[bool] = False
    block_by_block: ClassVar[bool] = False

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        """The rounds of member `me`.

        Spans are items of a flat wire buffer: of the whole buffer, or for allgather and
        reduce-scatter of the members' blocks side by side in `wire_order`.
        """
        raise NotImplementedError

    def wire_order(self, p: int, me: int, inner: int) -> list[int]:
        """The members whose blocks lie side by side in the wire of an allgather or reduce-scatter:
        the own one first, then around the group.
        """
        return [(me + j) % p for j in range(p)]

    def in_flight(self, kind: Kind, segments: int) -> int:
        """Rounds that may be under way at once, at most `segments`."""
        return 1

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """Numbers of pieces of a message that a plan may choose, besides one."""
        return ()

    def shifts(self, kind: Kind, sizes: IntArray, segments: int
               ) -> Iterator[tuple[IntArray, bool]] | None:
        """The rounds of all members of many groups at once, where each member sends to the next
        one: items by sender, [groups, p], and whether they are added. None: `rounds` alone says.

        Parameters
        ----------
        sizes : ndarray
            [groups, p] items of the members' blocks.
        """
        return None

    def sent(self, collective: Collective) -> tuple[IntArray, IntArray]:
        """Messages and items that each member sends: [p]."""
        out = np.zeros((2, collective.p), np.int64)
        for me in range(collective.p):
            sends = [m for r in self.rounds(collective, me) for m in r.sends]
            out[:, me] = len(sends), sum(m.stop - m.start for m in sends)
        return out[0], out[1]

    def busiest(self, kind: Kind, p: Ints, items: Ints, blocks: tuple[Ints, Ints], segments: Ints,
                inner: Ints) -> tuple[Ints, Ints]:
        """Messages and items of the member that sends most.

        Closed forms are exact for blocks of equal size, and for rings with any blocks. Arguments
        may be arrays with an entry for each case of a family of plans.

        Parameters
        ----------
        items : int
            Allreduce, reduce and broadcast: the buffer; allgather and reduce-scatter: all members'
            blocks together.
        blocks : (int, int)
            The smallest and the largest block of an allgather or reduce-scatter.
        """
        def case(*numbers: int) -> tuple[int, int]:
            messages, sent = self.sent(Collective.of(kind, *map(int, numbers)))
            return int(messages.max()), int(sent.max())

        messages, sent = np.vectorize(case, otypes=[np.int64] * 2)(p, items, segments, inner)
        return messages, sent

    def landing_items(self, kind: Kind, p: Ints, n: Ints, block: Ints) -> Ints:
        """Items that wait to be added on the member with most of them, at most; arrays as above.

        Parameters
        ----------
        n, block : int
            Of the whole buffer, and of the largest block.
        """
        def case(p: int, items: int) -> int:
            one = Collective.of(kind, int(p), int(items))
            return max(sum(slots_of(self.rounds(one, me), 1).values()) for me in range(p))

        whole = p * block if kind is Kind.REDUCE_SCATTER else n
        return np.vectorize(case, otypes=[np.int64])(p, whole)

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        """Seconds by the model of links; arrays as above.

        Parameters
        ----------
        n_bytes : float
            Allgather and reduce-scatter: all members' blocks together; else the buffer.
        add_s_per_byte : float
            Cost of adding received bytes.
        """
        return route.table_s(self, kind, n_bytes, segments, add_s_per_byte, True)[0]

    def priced_s(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                 add_s_per_byte: float) -> Floats:
        """Seconds as they were measured, where they were; arguments as for `seconds`."""
        add = add_s_per_byte if kind not in (Kind.ALLGATHER, Kind.BROADCAST) else 0.0
        seconds = self.seconds(kind, n_bytes, segments, route, add)
        seconds = np.where(np.equal(route.p, 1) | np.equal(n_bytes, 0), 0.0, seconds)
        factor = route.factor(kind, self.name, n_bytes)
        return seconds if factor is None else seconds * factor

    @property
    def has_formula(self) -> bool:
        """False where only the table of messages gives the time."""
        return type(self).seconds is not Algorithm.seconds


def slots_of(rounds: Sequence[Round], segments: int) -> dict[int, int]:
    """Items of the buffers for received messages that are added, one buffer for a round.

    At most `segments` rounds are in flight; they use the buffers cyclically.
    """
    out: dict[int, int] = {}
    for i, r in enumerate(rounds):
        if r.reduce and r.recvs:
            slot = i % segments
            out[slot] = max(out.get(slot, 0), sum(m.stop - m.start for m in r.recvs))
    return out
