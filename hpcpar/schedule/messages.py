"""One rank's view of a communication step: what it packs, the messages it sends and receives, what
it unpacks.

The communicator executes an `Exchange`; `counts` of it is what the trace must show.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hpcpar.plan.boxes import Box, intersect, items
from hpcpar.plan.layout import Layout
from hpcpar.schedule.collective_algorithms import Message, Round, collective
from hpcpar.schedule.steps import Comm, Kind


@dataclass(frozen=True)
class Piece:
    """A box (global indices) and its place `start:stop` in the wire buffer."""

    box: Box
    start: int
    stop: int


@dataclass(frozen=True)
class Exchange:
    """Pack, exchange, unpack.

    Attributes
    ----------
    wire_items : int
        Size of the wire buffer; 0 for an allreduce, whose wire is the tensor itself.
    pack : tuple of Piece
        Boxes of the held array to copy into the wire.
    peers : tuple of int
        Ranks that the rounds' group members stand for.
    rounds : tuple of Round
    unpack : tuple of Piece or Box
        In order: a Piece is copied (or, where the step reduces, added) from the wire into the
        wanted array; a bare Box is moved from the held array to the wanted one without a message.
        The order is that of the parts, so that replicas sum alike.
    """

    wire_items: int
    pack: tuple[Piece, ...]
    peers: tuple[int, ...]
    rounds: tuple[Round, ...]
    unpack: tuple[Piece | Box, ...]


NOTHING = Exchange(0, (), (), (), ())


@dataclass(frozen=True)
class Counts:
    """What a rank sends in a step."""

    messages: int
    sent_bytes: int


@lru_cache(maxsize=10_000)
def exchange(step: Comm, rank: int) -> Exchange:
    """The exchange of `rank` in `step`, kept for the next who asks."""
    return make_exchange(step, rank)


def make_exchange(step: Comm, rank: int) -> Exchange:
    """The exchange of `rank` in `step`."""
    if not step.concerns(rank):
        return NOTHING
    if step.group is None:
        return _direct(step, rank)
    peers = step.group.members(rank)
    me = peers.index(rank)
    if step.kind is Kind.ALLREDUCE:
        n = items(step.held(rank))
        return Exchange(0, (), peers, _rounds(step, (n,) * len(peers), me), ())
    if step.kind in (Kind.REDUCE, Kind.BROADCAST):
        return _rooted(step, rank, peers)
    # allgather: members' held boxes make up the wanted one; reduce-scatter: the other way round
    whole = step.wanter if step.kind is Kind.REDUCE_SCATTER else step.holder
    boxes = [whole.box(peer) for peer in peers]
    sizes = tuple(items(b) for b in boxes)
    at = 0
    pieces: dict[int, Piece] = {}
    # our own algorithms want the member's own block first, the library wants the group's order
    for k in range(len(peers)) if step.algorithm == "mpi" else ((me + j) % len(peers)
                                                                for j in range(len(peers))):
        pieces[k] = Piece(boxes[k], at, at + sizes[k])
        at += sizes[k]
    own, others = (pieces[me],), tuple(p for k, p in pieces.items() if k != me)
    rounds = _rounds(step, sizes, me)
    if step.kind is Kind.ALLGATHER:
        return Exchange(at, own, peers, rounds, (own[0].box, *others))
    return Exchange(at, own + others, peers, rounds, own)


def _rooted(step: Comm, rank: int, peers: tuple[int, ...]) -> Exchange:
    """Everyone's box to the root, which adds them in order, or the root's to everyone."""
    root = peers[step.root]
    gives = step.kind is Kind.REDUCE
    box = step.held(rank) if gives else step.wanted(rank)
    n = items(box)
    if not n or len(peers) == 1:
        return Exchange(0, (), peers, (), (box,) if n else ())
    if rank != root:
        there = (Message(step.root, 0, n),)
        sends, recvs = (there, ()) if gives else ((), there)
        piece = (Piece(box, 0, n),)
        return Exchange(n, piece if gives else (), peers, (Round(sends, recvs, False, -1),),
                        () if gives else piece)
    others = [k for k in range(len(peers)) if k != step.root]
    if not gives:
        messages = tuple(Message(k, 0, n) for k in others)
        return Exchange(n, (Piece(box, 0, n),), peers, (Round(messages, (), False, -1),), (box,))
    landed = {k: Piece(box, i * n, (i + 1) * n) for i, k in enumerate(others)}
    messages = tuple(Message(k, p.start, p.stop) for k, p in landed.items())
    return Exchange(len(others) * n, (), peers, (Round((), messages, False, -1),),
                    tuple(landed.get(k, box) for k in range(len(peers))))


def _rounds(step: Comm, sizes: tuple[int, ...], me: int) -> tuple[Round, ...]:
    if step.algorithm == "mpi" or len(sizes) == 1:
        return ()
    return tuple(collective(step.kind, step.algorithm, sizes, me, step.segments))


def _sources(holder: Layout, wanted: Box, replica: int) -> list[int]:
    """Ranks of one replica class whose held boxes meet `wanted`, by part."""
    return [r for r in holder.ranks_touching(wanted) if holder.replica(r) == replica]


def _direct(step: Comm, rank: int) -> Exchange:
    """Point to point: each wanter takes every part from the holder of its own replica class
    (itself, where it holds it).
    """
    holder, wanter = step.holder, step.wanter
    held, wanted = holder.box(rank), wanter.box(rank)
    mine = holder.replica(rank)
    pack: list[Piece] = []
    sends: list[Message] = []
    at = 0
    for peer in wanter.ranks_touching(held) if items(held) else ():
        if peer == rank or holder.replica(peer) != mine:
            continue
        box = intersect(held, wanter.box(peer))
        if box is not None:
            pack.append(Piece(box, at, at + items(box)))
            sends.append(Message(peer, at, at + items(box)))
            at += items(box)
    recvs: list[Message] = []
    unpack: list[Piece | Box] = []
    for peer in _sources(holder, wanted, mine) if items(wanted) else ():
        box = intersect(holder.box(peer), wanted)
        if box is None:
            continue
        if peer == rank:
            unpack.append(box)
            continue
        unpack.append(Piece(box, at, at + items(box)))
        recvs.append(Message(peer, at, at + items(box)))
        at += items(box)
    rounds = (Round(tuple(sends), tuple(recvs), False, -1),) if sends or recvs else ()
    peers = tuple(range(int(max(c.first + c.ranks for c in (holder.config, wanter.config)))))
    return Exchange(at, tuple(pack), peers, rounds, tuple(unpack))


def counts(step: Comm, rank: int) -> Counts:
    """Messages and bytes that `rank` sends in `step`.

    A library collective counts as one message of the rank's own contribution: what it does inside
    is not ours to see.
    """
    ex = exchange(step, rank)
    if step.algorithm == "mpi" and len(ex.peers) > 1:
        return Counts(1, items(step.held(rank)) * step.item_bytes)
    sent = [m for r in ex.rounds for m in r.sends]
    return Counts(len(sent), sum(m.stop - m.start for m in sent) * step.item_bytes)
