"""Recursive doubling of the whole buffer; a reduction or a broadcast follows a binomial tree.

With p members, n bytes, alpha and beta of the links between partners, and gamma (s/byte) the cost
of adding:

allreduce
    r (alpha + n beta + n gamma), r = log2 p (2 more rounds if p is not a power of two)
reduce, broadcast
    ceil(log2 p) (alpha + n beta), plus the additions of a reduce

Messages are priced one by one where a reduction or a broadcast spans nodes, or an allreduce whose p
is not a power of two.
"""

from __future__ import annotations

import numpy as np

from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.algorithms.base import (
    ROOTED,
    Algorithm,
    Collective,
    Message,
    Round,
    Routed,
    message,
)
from hpcpar.schedule.algorithms.powers import beyond_power, log2_ceil, log2_floor
from hpcpar.schedule.algorithms.ring import adjoint
from hpcpar.schedule.steps import Kind


class Doubling(Algorithm):
    """Exchanges of the whole buffer at doubling distance."""

    name = "doubling"
    kinds = (Kind.ALLREDUCE, *ROOTED)

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        if collective.kind is Kind.ALLREDUCE:
            return _exchanges(collective.p, me, collective.sizes[0])
        down = _tree(collective, me)
        return adjoint(down) if collective.kind is Kind.REDUCE else down

    def busiest(self, kind: Kind, p: Ints, items: Ints, blocks: tuple[Ints, Ints], segments: Ints,
                inner: Ints) -> tuple[Ints, Ints]:
        count: Ints = np.minimum(1, p - 1)
        if kind is Kind.BROADCAST:
            count = log2_ceil(p)
        elif kind is Kind.ALLREDUCE:
            count = log2_floor(p) + beyond_power(p)
        return count, count * items

    def landing_items(self, kind: Kind, p: Ints, n: Ints, block: Ints) -> Ints:
        return n

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        p, walks = route.p, route.crosses
        if kind in ROOTED:
            uniform = log2_ceil(p) * (route.far.message_s(n_bytes) + n_bytes * add_s_per_byte)
            walked = route.table_s(self, kind, n_bytes, 1, add_s_per_byte, walks)[0]
            return np.where(walks, walked, uniform)
        walks = walks & (beyond_power(p) > 0)
        walked = route.table_s(self, kind, n_bytes, 1, add_s_per_byte, walks)[0]
        # every member adds in log2_ceil(p) rounds, or waits for a member that does
        adding_s = log2_ceil(p) * n_bytes * add_s_per_byte
        return np.where(walks, walked, _exchanges_s(p, n_bytes, route) + adding_s)


def _exchanges(p: int, me: int, n: int) -> list[Round]:
    """floor(log2 p) exchanges; before, members beyond a power of two send to a neighbor, which
    returns the sum at the end.
    """
    power = 1 << (p.bit_length() - 1)
    extra = p - power
    if me < 2 * extra and me % 2 == 0:
        return [Round(message(me + 1, 0, n), ()), Round((), message(me + 1, 0, n))]
    folds = me < 2 * extra
    out = [Round((), message(me - 1, 0, n), True)] if folds else []
    place = me // 2 if folds else me - extra
    step = 1
    while step < power:
        other = place ^ step
        both = message(2 * other + 1 if other < extra else other + extra, 0, n)
        out.append(Round(both, both, True))
        step *= 2
    return [*out, Round(message(me - 1, 0, n), ())] if folds else out


def _tree(collective: Collective, me: int) -> list[Round]:
    """Rounds of a broadcast along a binomial tree, the farthest member first."""
    p, root = collective.p, collective.root
    at = (me - root) % p

    def to(place: int) -> tuple[Message, ...]:
        return message((root + place) % p, 0, collective.sizes[0]) if place < p else ()

    distance = at & -at or 1 << (p - 1).bit_length()
    out = [Round((), to(at - distance))] if at else []
    while distance > 1:
        distance //= 2
        out.append(Round(to(at + distance), ()))
    return out


def _exchanges_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    total: Floats = 0.0
    power = log2_floor(p)
    for r in range(int(np.max(power))):
        total = total + np.where(r < power, route.hop(r).message_s(n_bytes), 0.0)
    return total + beyond_power(p) * 2 * route.hop(0).message_s(n_bytes)
