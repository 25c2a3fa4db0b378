"""Decides which messages one rank sends and receives in a communication step.

The communicator executes an `Exchange`; the trace of a run must equal its `counts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from hpcpar.plan.boxes import items
from hpcpar.schedule.algorithms.base import ROOTED, SCATTERED, Collective, Round, rounds_of
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.exchange import NOTHING, Exchange, Kept, Piece
from hpcpar.schedule.halo_exchange import point_to_point
from hpcpar.schedule.steps import Comm, Kind


@dataclass(frozen=True)
class Counts:
    """Messages and bytes that a rank sends in a step."""

    messages: int
    sent_bytes: int


@lru_cache(maxsize=10_000)
def exchange(step: Comm, rank: int) -> Exchange:
    """`make_exchange`, cached."""
    return make_exchange(step, rank)


def make_exchange(step: Comm, rank: int) -> Exchange:
    """`rank`'s part in `step`."""
    if not step.concerns(rank):
        return NOTHING
    if step.group is None:
        return point_to_point(step, rank)
    parts = _rooted if step.kind in ROOTED else _blocks if step.kind in SCATTERED else _whole
    in_flight = ALGORITHMS[step.algorithm].in_flight(step.kind, step.segments)
    return replace(parts(step, rank, step.group.members(rank)), in_flight=in_flight)


def _whole(step: Comm, rank: int, peers: tuple[int, ...]) -> Exchange:
    """Allreduce: the wire is the tensor itself."""
    sizes = (items(step.source_box(rank)),) * len(peers)
    return Exchange(0, (), peers, _rounds(step, sizes, peers.index(rank)), ())


def _blocks(step: Comm, rank: int, peers: tuple[int, ...]) -> Exchange:
    """Allgather and reduce-scatter: the members' blocks make up the whole box."""
    layout = step.destination if step.kind is Kind.REDUCE_SCATTER else step.source
    boxes = [layout.box(peer) for peer in peers]
    sizes = tuple(items(box) for box in boxes)
    me = peers.index(rank)
    order = ALGORITHMS[step.algorithm].wire_order(len(peers), me, step.inner)
    at = 0
    pieces: dict[int, Piece] = {}
    for k in order.tolist():
        pieces[k] = Piece(boxes[k], at, at + sizes[k])
        at += sizes[k]
    own, others = (pieces[me],), tuple(p for k, p in pieces.items() if k != me)
    rounds = _rounds(step, sizes, me)
    if step.kind is Kind.ALLGATHER:
        return Exchange(at, own, peers, rounds, (Kept(own[0].box, own[0].box), *others))
    return Exchange(at, own + others, peers, rounds, own)


def _rooted(step: Comm, rank: int, peers: tuple[int, ...]) -> Exchange:
    """Reduction and broadcast: every member's box is the whole buffer."""
    box, me = step.source_box(rank), peers.index(rank)
    n = items(box)
    if not n or len(peers) == 1:
        return Exchange(0, (), peers, (), (Kept(box, box),) if n else ())
    rounds, whole = _rounds(step, (n,) * len(peers), me), (Piece(box, 0, n),)
    if step.kind is Kind.REDUCE:
        return Exchange(n, whole, peers, rounds, whole if me == step.root else ())
    if me == step.root:
        return Exchange(n, whole, peers, rounds, (Kept(box, box),))
    return Exchange(n, (), peers, rounds, whole)


def _rounds(step: Comm, sizes: tuple[int, ...], me: int) -> tuple[Round, ...]:
    if len(sizes) == 1:
        return ()
    collective = Collective(step.kind, sizes, step.segments, step.inner, step.root)
    return rounds_of(ALGORITHMS[step.algorithm], collective, me)


def counts(step: Comm, rank: int) -> Counts:
    """Messages and bytes that `rank` sends in `step`.

    The MPI library hides a collective's messages: it counts as one message with the rank's own
    contribution. So does a sum on a host.
    """
    ex = exchange(step, rank)
    if step.kind in ALGORITHMS[step.algorithm].hidden and len(ex.peers) > 1:
        return Counts(1, items(step.source_box(rank)) * step.item_bytes)
    sent = [m for r in ex.rounds for m in r.sends]
    return Counts(len(sent), sum(m.stop - m.start for m in sent) * step.item_bytes)
