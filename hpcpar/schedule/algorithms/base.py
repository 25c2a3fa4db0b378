"""Decides what a collective algorithm states, so that one entry serves plans, prices and runs.

`Algorithm.rounds` is the one description of the messages. The communicator executes these rounds
and nothing else; the trace, the bytes, the message memory and the simulation all follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.boxes import block
from hpcpar.schedule.steps import Kind

#: A number, or an array with one number for each of several members.
Each: TypeAlias = Any  # type: ignore[explicit-any]
#: Kinds that have a root.
ROOTED = (Kind.REDUCE, Kind.BROADCAST)
#: Kinds in which each member has its own block.
SCATTERED = (Kind.ALLGATHER, Kind.REDUCE_SCATTER)


@dataclass(frozen=True)
class Message:
    """Items `start:stop` of the wire buffer, to or from member `peer` of the group.

    A message without items is not sent. In point-to-point patterns, `peer` is the rank.
    """

    peer: Each
    start: Each
    stop: Each


@dataclass(frozen=True)
class Round:
    """Messages that travel together; a member's rounds start and complete in order.

    Attributes
    ----------
    reduce : bool
        Received items are added to the wire buffer instead of replacing it.
    times : int
        Rounds in a row that differ only in where the items lie (`Collective.alike`).
    """

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]
    reduce: bool = False
    times: int = 1


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
    alike : bool
        All blocks have the same size, and only sizes matter: rounds in a row that are alike may be
        given once, with `Round.times`.
    """

    kind: Kind
    sizes: tuple[int, ...]
    segments: int = 1
    inner: int = 1
    root: int = 0
    alike: bool = False

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

    @classmethod
    def of_blocks(cls, kind: Kind, p: int, block_items: int, segments: int = 1, inner: int = 1,
                  root: int = 0) -> Collective:
        """A collective on p blocks of one size, whose rounds may be given once where alike."""
        items = block_items if kind in SCATTERED else block_items * p
        return cls(kind, (items,) * p, segments, inner, root, True)

    @property
    def bounds(self) -> IntArray:
        """The start of each block of the whole buffer, and the end of the last one."""
        if self.kind in SCATTERED:
            return np.concatenate(([0], np.cumsum(self.sizes, dtype=np.int64)))
        p = len(self.sizes)
        return np.arange(p + 1) * self.sizes[0] // p


class Algorithm:
    """A collective algorithm. A new one needs `name`, `kinds` and `rounds`.

    Attributes
    ----------
    kinds : tuple of Kind
        The collectives that it implements.
    priced_only : bool
        Its messages have an end outside of the ranks, so it cannot run.
    hidden : tuple of Kind
        The collectives in which a member sends one message that `rounds` leaves out, with all that
        the member has.
    library : bool
        The MPI library (or NCCL) does the collective itself, with messages that it does not show.
    priced_as : tuple of str
        The algorithms of which the fastest gives the price of such a collective.
    by_nodes : bool
        The algorithm is hierarchical: it uses `Collective.inner`.
    block_by_block : bool
        Each message of an allgather or a reduce-scatter holds (a piece of) a single member's block,
        so blocks may lie in the tensor itself, separate from each other.
    together : bool
        `rounds` also takes an array of members, and gives all of their rounds at once.
    on_request : bool
        Plans use it only by name; ``auto`` leaves it out, because another one is never slower.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    priced_only: ClassVar[bool] = False
    hidden: ClassVar[tuple[Kind, ...]] = ()
    library: ClassVar[bool] = False
    priced_as: ClassVar[tuple[str, ...]] = ()
    by_nodes: ClassVar[bool] = False
    block_by_block: ClassVar[bool] = False
    together: ClassVar[bool] = False
    on_request: ClassVar[bool] = False

    def rounds(self, collective: Collective, me: Each) -> Iterable[Round]:
        """The rounds of member `me`.

        All members have equally many rounds, and a message is received in the round in which it is
        sent. Messages are spans of a flat wire buffer: the whole tensor, or for allgather and
        reduce-scatter the members' blocks side by side in `wire_order`.
        """
        raise NotImplementedError

    def wire_order(self, p: int, me: Each, inner: int) -> IntArray:
        """The order of blocks in member `me`'s wire: its own first, then around the group.

        [p], or [p, members].
        """
        return np.add.outer(np.arange(p), me) % p

    def in_flight(self, kind: Kind, segments: int) -> int:
        """The number of rounds that may be in flight at once; at most `segments`."""
        return 1

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """The values of `segments` that a plan may choose, besides 1."""
        return ()


def rounds_of(entry: Algorithm, collective: Collective, me: int) -> tuple[Round, ...]:
    """The rounds of member `me`, with its messages in plain numbers.

    Rounds without messages are left out, unless other rounds are in flight beside them.
    """
    def sent(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(Message(int(m.peer), int(m.start), int(m.stop)) for m in messages
                     if m.stop > m.start)

    rounds = (Round(sent(r.sends), sent(r.recvs), r.reduce)
              for r in entry.rounds(collective, me))
    one_by_one = entry.in_flight(collective.kind, collective.segments) == 1
    return tuple(r for r in rounds if r.sends or r.recvs or not one_by_one)


def adjoint(rounds: Iterable[Round]) -> list[Round]:
    """The rounds reversed: sends become receives, receives become sends, receivers add."""
    return [Round(r.recvs, r.sends, True, r.times) for r in reversed(list(rounds))]


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
