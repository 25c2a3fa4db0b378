"""Sums go to one leader per node, around a ring of leaders, and back: ParaDL's allreduce.

With p members, m of them on each node, n bytes, and latency alpha (s) and inverse bandwidth beta
(s/byte) of the links inside a node and between nodes:

allreduce
    2 ceil(log2 m) (alpha_in + n beta_in) + 2 (p / m - 1) (alpha + n m / p beta), plus additions
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcpar.schedule.algorithms.base import Algorithm, Collective, Each, Message, Round
from hpcpar.schedule.algorithms.ring import turns
from hpcpar.schedule.steps import Kind


class Leaders(Algorithm):
    """A tree in each node, and a ring of the nodes' first members."""

    name = "leaders"
    kinds = (Kind.ALLREDUCE,)
    by_nodes = True
    together = True
    on_request = True

    def rounds(self, collective: Collective, me: Each) -> Iterator[Round]:
        inner, p, items = collective.inner, collective.p, collective.sizes[0]
        up = list(_to_leader(items, inner, p, me))
        yield from up
        leads = me % inner == 0
        if p > inner:
            nodes = Collective(collective.kind, (items,) * (p // inner), alike=collective.alike)
            for r in turns(nodes, me // inner):
                sent, received = ([Message(x.peer * inner, x.start * leads, x.stop * leads)
                                   for x in messages] for messages in (r.sends, r.recvs))
                yield Round(tuple(sent), tuple(received), r.reduce, r.times)
        yield from (Round(r.recvs, r.sends) for r in reversed(up))


def _to_leader(items: int, inner: int, p: int, me: Each) -> Iterator[Round]:
    """Sums of each node's members move up a tree to its first member."""
    place, distance = me % inner, 1
    while distance < inner:
        sends = place % (2 * distance) == distance
        receives = (place % (2 * distance) == 0) & (place + distance < inner)
        yield Round((Message((me - distance) % p, 0, items * sends),),
                    (Message((me + distance) % p, 0, items * receives),), True)
        distance *= 2
