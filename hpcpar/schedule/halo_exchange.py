"""Point-to-point messages between two layouts: halo exchanges, redistributions and their adjoints.

Every rank takes its box of the target layout in pieces, one from each rank whose box of the source
layout meets it. Where several ranks hold the same values (replicas), it asks only those with its
own replica index, so that every element reaches it once. What it holds itself it keeps, without a
message.

In a halo exchange forward, the source layout is what ranks own of a layer's input and the target is
what they need of it: a rank receives from its neighbours the border rows that its windows reach.
Backward, source and target swap: a rank sends the gradients of those rows back to their owners,
which add them (`Comm.reduce`).
"""

from __future__ import annotations

from hpcpar.plan.boxes import Box, intersect, items
from hpcpar.schedule.algorithms.base import Message, Round
from hpcpar.schedule.exchange import Exchange, Piece
from hpcpar.schedule.steps import Comm


def point_to_point(step: Comm, rank: int) -> Exchange:
    """The exchange of `rank` in a halo exchange or a redistribution: one round of messages.

    The wire buffer holds first what is sent, by receiver, then what is received, by sender.
    """
    pack: list[Piece] = []
    sends: list[Message] = []
    at = 0
    for peer, box in _sent(step, rank):
        pack.append(Piece(box, at, at + items(box)))
        sends.append(Message(peer, at, at + items(box)))
        at += items(box)
    unpack: list[Piece | Box] = []
    recvs: list[Message] = []
    for peer, box in _wanted(step, rank):
        if peer == rank:
            unpack.append(box)
            continue
        unpack.append(Piece(box, at, at + items(box)))
        recvs.append(Message(peer, at, at + items(box)))
        at += items(box)
    rounds = (Round(tuple(sends), tuple(recvs)),) if sends or recvs else ()
    ends = [c.first + c.ranks for c in (step.source.config, step.destination.config)]
    peers = tuple(range(int(max(ends))))
    return Exchange(at, tuple(pack), peers, rounds, tuple(unpack))


def _sent(step: Comm, rank: int) -> list[tuple[int, Box]]:
    """The receivers of `rank`'s messages and the boxes that it sends to them, in order of rank."""
    held = step.source_box(rank)
    if not items(held):
        return []
    replica = step.source.replica(rank)
    peers = [peer for peer in step.destination.ranks_touching(held)
             if peer != rank and step.source.replica(peer) == replica]
    return _common(held, [(peer, step.destination_box(peer)) for peer in peers])


def _wanted(step: Comm, rank: int) -> list[tuple[int, Box]]:
    """The sources of `rank`'s wanted box, itself included, and what it takes from each."""
    wanted = step.destination_box(rank)
    if not items(wanted):
        return []
    replica = step.source.replica(rank)
    peers = [peer for peer in step.source.ranks_touching(wanted)
             if step.source.replica(peer) == replica]
    return _common(wanted, [(peer, step.source_box(peer)) for peer in peers])


def _common(mine: Box, theirs: list[tuple[int, Box]]) -> list[tuple[int, Box]]:
    """The intersections of `mine` with the boxes of peers, without the empty ones."""
    common = [(peer, intersect(mine, box)) for peer, box in theirs]
    return [(peer, box) for peer, box in common if box is not None]
