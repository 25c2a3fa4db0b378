"""Point-to-point messages between two layouts: halo exchanges, redistributions and their adjoints.

Every rank takes its box of the target layout in pieces, one from each rank whose box of the source
layout meets it. Where several ranks hold the same values (replicas), it asks only those with its
own replica index, so that every element reaches it once. What it holds itself it keeps, without a
message.

In a halo exchange forward, the source layout is what ranks own of a layer's input and the target is
what they need of it: a rank receives from its neighbours the border rows that its windows reach.
Backward, source and target swap: a rank sends the gradients of those rows back to their owners,
which add them (`Comm.reduce`). Where a needed box leaves the axis and goes on at its other end
(`Periodic`), the ranks at the two ends are neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from hpcpar.plan.boxes import Box, items, shared
from hpcpar.schedule.algorithms.base import Message, Round
from hpcpar.schedule.exchange import Exchange, Kept, Piece
from hpcpar.schedule.steps import Comm

#: A peer, and a box that moves: in the holder's indices, and in the receiver's.
Part = tuple[int, Box, Box]


def point_to_point(step: Comm, rank: int) -> Exchange:
    """The exchange of `rank` in a halo exchange or a redistribution: one round of messages.

    The wire buffer holds first what is sent, by receiver, then what is received, by sender.
    """
    pack: list[Piece] = []
    sends: list[Message] = []
    at = 0
    for peer, box, _ in _sent(step, rank):
        pack.append(Piece(box, at, at + items(box)))
        sends.append(Message(peer, at, at + items(box)))
        at += items(box)
    unpack: list[Piece | Kept] = []
    recvs: list[Message] = []
    for peer, held, box in _wanted(step, rank):
        if peer == rank:
            unpack.append(Kept(held, box))
            continue
        unpack.append(Piece(box, at, at + items(box)))
        recvs.append(Message(peer, at, at + items(box)))
        at += items(box)
    rounds = (Round(tuple(sends), tuple(recvs)),) if sends or recvs else ()
    ends = [c.first + c.ranks for c in (step.source.config, step.destination.config)]
    peers = tuple(range(int(max(ends))))
    return Exchange(at, tuple(pack), peers, rounds, tuple(unpack))


def _sent(step: Comm, rank: int) -> Iterator[Part]:
    """The receivers of `rank`'s messages and the boxes that it sends to them, in order of rank."""
    held = step.source_box(rank)
    if items(held):
        replica = step.source.replica(rank)
        peers = (peer for peer in step.destination.ranks_touching(held)
                 if peer != rank and step.source.replica(peer) == replica)
        yield from _parts(step, ((peer, held, step.destination_box(peer)) for peer in peers))


def _wanted(step: Comm, rank: int) -> Iterator[Part]:
    """The sources of `rank`'s wanted box, itself included, and what it takes from each."""
    wanted = step.destination_box(rank)
    if items(wanted):
        replica = step.source.replica(rank)
        peers = (peer for peer in step.source.ranks_touching(wanted)
                 if step.source.replica(peer) == replica)
        yield from _parts(step, ((peer, step.source_box(peer), wanted) for peer in peers))


def _parts(step: Comm, pairs: Iterable[Part]) -> Iterator[Part]:
    """The boxes that held and wanted boxes have in common, in an order that both ranks know."""
    for peer, held, wanted in pairs:
        along = (shared(a, b, int(extent)) for a, b, extent in zip(
            held, wanted, step.source.shape, strict=True))
        for common in itertools.product(*along):
            yield peer, tuple(a for a, _ in common), tuple(b for _, b in common)
