"""Decides which messages a halo exchange or redistribution sends between two layouts.

A rank assembles its target box from the source boxes that overlap it, one piece per source rank.
Where replicas hold the same values, a rank receives only from ranks with its own replica index, so
every element arrives once. A piece that the rank itself holds needs no message.

In a forward halo exchange, ranks own the source boxes of a layer's input and need the target boxes:
a rank receives from its neighbors the border rows that its windows reach. In the backward pass,
source and target swap: a rank sends the gradients of those rows back to their owners, which add
them (`Comm.reduce`). On a `Periodic` axis, a needed box may continue at the other end, so the ranks
at the two ends are neighbors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from hpcpar.plan.boxes import Box, items, shared
from hpcpar.schedule.algorithms.base import Message, Round
from hpcpar.schedule.exchange import Exchange, Kept, Piece
from hpcpar.schedule.steps import Comm

#: A peer, and the box that moves: in the holder's indices, then in the receiver's.
Part = tuple[int, Box, Box]


def point_to_point(step: Comm, rank: int) -> Exchange:
    """`rank`'s part in a halo exchange or a redistribution: one round of messages.

    The wire buffer holds outgoing pieces by receiver, then incoming pieces by sender.
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
    """The boxes that `rank` sends, with their receivers, in rank order."""
    held = step.source_box(rank)
    if items(held):
        replica = step.source.replica(rank)
        peers = (peer for peer in step.destination.ranks_touching(held)
                 if peer != rank and step.source.replica(peer) == replica)
        yield from _parts(step, ((peer, held, step.destination_box(peer)) for peer in peers))


def _wanted(step: Comm, rank: int) -> Iterator[Part]:
    """The pieces of `rank`'s target box, with their holders; `rank` itself may be one."""
    wanted = step.destination_box(rank)
    if items(wanted):
        replica = step.source.replica(rank)
        peers = (peer for peer in step.source.ranks_touching(wanted)
                 if step.source.replica(peer) == replica)
        yield from _parts(step, ((peer, step.source_box(peer), wanted) for peer in peers))


def _parts(step: Comm, pairs: Iterable[Part]) -> Iterator[Part]:
    """The overlaps of held and wanted boxes, in the same order on sender and receiver."""
    for peer, held, wanted in pairs:
        by_axis = (shared(a, b, int(extent)) for a, b, extent in zip(
            held, wanted, step.source.shape, strict=True))
        for overlap in itertools.product(*by_axis):
            yield peer, tuple(a for a, _ in overlap), tuple(b for _, b in overlap)
