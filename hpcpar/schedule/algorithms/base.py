"""The base class of collective algorithms: one entry serves planning, pricing and running.

`Algorithm.rounds` is the one description of the messages. The communicator executes these rounds
and nothing else; the trace, the bytes, the message memory and the simulation all follow from them.
An entry may add closed forms, for groups and families of plans whose message tables would be too
large; tests compare each closed form with the rounds.
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

#: Kinds that have a root.
ROOTED = (Kind.REDUCE, Kind.BROADCAST)
#: Kinds in which each member has its own block.
SCATTERED = (Kind.ALLGATHER, Kind.REDUCE_SCATTER)


@dataclass(frozen=True)
class Message:
    """Items `start:stop` of the wire buffer, to or from member `peer` of the group.

    In point-to-point patterns, `peer` is the rank.
    """

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Round:
    """Messages that travel together; a member's rounds start and complete in order.

    With `reduce`, received items are added to the wire buffer instead of replacing it.
    """

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]
    reduce: bool = False


def message(peer: int, start: int, stop: int) -> tuple[Message, ...]:
    """A message, unless it is empty."""
    return (Message(peer, start, stop),) if stop > start else ()


@dataclass(frozen=True)
class Collective:
    """A collective of one group.

    Attributes
    ----------
    sizes : tuple of int
        Items of each member's block, in group order; the whole buffer's size for an allreduce, a
        reduction or a broadcast.
    segments : int
        Pieces per message, where the algorithm cuts messages.
    inner : int
        Group members per node, where the algorithm is hierarchical; else 1.
    root : int
        The member where a reduction ends, or where a broadcast begins.
    """

    kind: Kind
    sizes: tuple[int, ...]
    segments: int = 1
    inner: int = 1
    root: int = 0

    @property
    def p(self) -> int:
        """Number of members."""
        return len(self.sizes)

    @classmethod
    def of(cls, kind: Kind, p: int, items: int, segments: int = 1, inner: int = 1,
           root: int = 0) -> Collective:
        """A collective on `items` items in total, in blocks of nearly equal size."""
        if kind not in SCATTERED:
            return cls(kind, (items,) * p, segments, inner, root)
        bounds = [block(items, p, i) for i in range(p)]
        return cls(kind, tuple(stop - start for start, stop in bounds), segments, inner, root)


class LinkTimes(Protocol):
    """Message times over links of one kind."""

    def latency_s(self, message_bytes: Numbers) -> Floats: ...

    def message_s(self, message_bytes: Numbers) -> Floats: ...


class Routed(Protocol):
    """The links that a group's messages use.

    * `p`: members of the group.
    * `far`: the slowest link between neighbors of a ring.
    * `crosses`: true where the group's members are joined by links of different kinds.
    * `hop`: links between partners at distance 2^doubling; with `around`, between every member and
      the one 2^doubling further around the group.
    * `split`: the routes inside nodes and between nodes; None where no node has several consecutive
      members.
    * `factor`: measured time divided by modeled time; None without a measurement.
    * `table_s`: seconds of an algorithm's messages priced one by one, and of its slowest message,
      in the cases `where`; NaN elsewhere.
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
    """A collective algorithm. A new one needs `name`, `kinds` and `rounds`.

    Attributes
    ----------
    kinds : tuple of Kind
        The collectives that it implements.
    library : bool
        The MPI library (or NCCL) does the collective itself, with messages that it does not show.
    by_nodes : bool
        The algorithm is hierarchical: it uses `Collective.inner`.
    block_by_block : bool
        Each message of an allgather or a reduce-scatter holds (a piece of) a single member's block,
        so blocks may lie in the tensor itself, separate from each other.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    library: ClassVar[bool] = False
    by_nodes: ClassVar[bool] = False
    block_by_block: ClassVar[bool] = False

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        """The rounds of member `me`.

        Messages are spans of a flat wire buffer: the whole tensor, or for allgather and
        reduce-scatter the members' blocks side by side in `wire_order`.
        """
        raise NotImplementedError

    def wire_order(self, p: int, me: int, inner: int) -> list[int]:
        """The order of blocks in member `me`'s wire: its own first, then around the group."""
        return [(me + j) % p for j in range(p)]

    def in_flight(self, kind: Kind, segments: int) -> int:
        """The number of rounds that may be in flight at once; at most `segments`."""
        return 1

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """The values of `segments` that a plan may choose, besides 1."""
        return ()

    def shifts(self, kind: Kind, sizes: IntArray, segments: int
               ) -> Iterator[tuple[IntArray, bool]] | None:
        """The rounds of many groups at once, if each member only sends to the next one; else None.

        `sizes` [groups, p] are the items of the members' blocks. Each round gives the items by
        sender, [groups, p], and whether the receiver adds them.
        """
        return None

    def sent(self, collective: Collective) -> tuple[IntArray, IntArray]:
        """Messages and items that each member sends: [p] each."""
        out = np.zeros((2, collective.p), np.int64)
        for me in range(collective.p):
            sends = [m for r in self.rounds(collective, me) for m in r.sends]
            out[:, me] = len(sends), sum(m.stop - m.start for m in sends)
        return out[0], out[1]

    def busiest(self, kind: Kind, p: Ints, items: Ints, blocks: tuple[Ints, Ints], segments: Ints,
                inner: Ints) -> tuple[Ints, Ints]:
        """Messages and items of the member that sends the most.

        Closed forms are exact for blocks of equal size; a ring's is exact for any blocks. Arguments
        may be arrays with one entry per case of a family of plans.

        Parameters
        ----------
        items : int
            Size of the whole buffer; for allgather and reduce-scatter, all members' blocks
            together.
        blocks : (int, int)
            The smallest and the largest block of an allgather or reduce-scatter.
        """
        def case(*numbers: int) -> tuple[int, int]:
            messages, sent = self.sent(Collective.of(kind, *map(int, numbers)))
            return int(messages.max()), int(sent.max())

        messages, sent = np.vectorize(case, otypes=[np.int64] * 2)(p, items, segments, inner)
        return messages, sent

    def landing_items(self, kind: Kind, p: Ints, n: Ints, block: Ints) -> Ints:
        """Upper bound: no member has more received items waiting to be added at once.

        `n` and `block` are the items of the whole buffer and of the largest block. Arguments may be
        arrays, as in `busiest`.
        """
        def case(p: int, items: int) -> int:
            one = Collective.of(kind, int(p), int(items))
            return max(sum(slots_of(self.rounds(one, me), 1).values()) for me in range(p))

        whole = p * block if kind is Kind.REDUCE_SCATTER else n
        return np.vectorize(case, otypes=[np.int64])(p, whole)

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        """Seconds by the model of the links; arguments may be arrays, as in `busiest`.

        Parameters
        ----------
        n_bytes : float
            Size of the whole buffer; for allgather and reduce-scatter, all members' blocks
            together.
        add_s_per_byte : float
            Cost of adding received bytes.
        """
        return route.table_s(self, kind, n_bytes, segments, add_s_per_byte, True)[0]

    def priced_s(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                 add_s_per_byte: float) -> Floats:
        """`seconds`, corrected by measurements where there are any."""
        add = add_s_per_byte if kind not in (Kind.ALLGATHER, Kind.BROADCAST) else 0.0
        seconds = self.seconds(kind, n_bytes, segments, route, add)
        seconds = np.where(np.equal(route.p, 1) | np.equal(n_bytes, 0), 0.0, seconds)
        factor = route.factor(kind, self.name, n_bytes)
        return seconds if factor is None else seconds * factor

    @property
    def has_formula(self) -> bool:
        """False where only the message table gives the time."""
        return type(self).seconds is not Algorithm.seconds


def slots_of(rounds: Sequence[Round], segments: int) -> dict[int, int]:
    """Sizes (items) of the landing buffers, by slot; each holds one round's messages until they are
    added.

    At most `segments` rounds are in flight; they use the slots cyclically.
    """
    out: dict[int, int] = {}
    for i, r in enumerate(rounds):
        if r.reduce and r.recvs:
            slot = i % segments
            out[slot] = max(out.get(slot, 0), sum(m.stop - m.start for m in r.recvs))
    return out
