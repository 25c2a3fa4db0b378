"""Decides how long a collective takes, by a walk through its waves in all groups at once.

Groups whose messages share their links alike are walked once. Times are known for every placement,
algorithm and size that was asked for. In jobs of more than `MOST_RANKS` ranks the price is the sum
over waves of the slowest message, among the ranks near the ends of the job and of the machine's
units: an upper bound, unless units between these are busier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.network.contention import NetworkModel, Placement, Route, distinct
from hpcpar.cost.network.host_server import host_s
from hpcpar.cost.network.links import FloatArray, LinkRates
from hpcpar.cost.network.pieces import Pieces
from hpcpar.cost.network.walk import Crossing, Walk, rates
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Flags, Floats, Ints, Numbers
from hpcpar.schedule.algorithms.base import ROOTED, SCATTERED, Algorithm, Collective, Message
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import HOST, Kind
from hpcpar.schedule.waves import Pairs, Wave, between, collective_waves

Value = TypeVar("Value", bound=np.generic)
#: Largest job whose collectives are walked on all ranks.
MOST_RANKS = 1024
#: Items of a block in messages that stand for any size: a number with many divisors.
NOMINAL_ITEMS = 5040
#: Larger units of ranks are represented by this many of theirs.
MOST_UNIT = 512
#: Sizes that are walked at once, to bound memory.
MOST_SIZES = 64


class Cases:
    """The distinct placements and sizes among the collectives of a family of plans.

    Parameters
    ----------
    where : ndarray, optional
        The plans that count.
    """

    def __init__(self, way: Route, n_bytes: Numbers, where: Flags = True) -> None:
        which, sizes, self.where = np.broadcast_arrays(way.which, n_bytes, where)
        self.shape = which.shape
        cases, self.index = distinct([which[self.where], sizes[self.where]])
        ends = np.flatnonzero(np.diff(cases[0])) + 1
        starts = [0, *ends.tolist(), cases.shape[1]]
        #: The sizes (bytes) of each placement, in the order of the distinct cases.
        self.of_placement = [
            (placed(way.network_model, Placement.of(*way.placements[:, int(cases[0, a])].tolist())),
             cases[1, a:b].astype(np.float64))
            for a, b in pairwise(starts) if b > a]

    def seconds(self, kind: Kind, algorithm: str, segments: int, root: int = 0) -> FloatArray:
        """Seconds of a collective in each distinct case."""
        return np.concatenate([place.seconds(kind, algorithm, segments, root, sizes)
                               for place, sizes in self.of_placement] or [np.zeros(0)])

    def pieces_bytes(self, kind: Kind, segments: int) -> FloatArray:
        """Bytes of the pieces of messages in `segments`, in each distinct case."""
        return np.concatenate([
            sizes / ((1 if kind in ROOTED else place.placement.p) * segments)
            for place, sizes in self.of_placement] or [np.zeros(0)])

    def spread(self, values: NDArray[Value]) -> NDArray[Value]:
        """Values of all plans, each from its distinct case; 0 for plans without one."""
        out = np.zeros(self.shape, values.dtype)
        out[self.where] = values[self.index]
        return out


def collective_s(kind: Kind, algorithm: str, n_bytes: Numbers, segments: Ints,
                 way: Route) -> Floats:
    """Seconds of a collective on its slowest member; arguments may be arrays.

    Parameters
    ----------
    n_bytes : float
        Size of the whole buffer; for allgather and reduce-scatter, all members' blocks together.
    """
    out: Floats = 0.0
    for pieces in np.unique(segments).tolist():
        cases = Cases(way, n_bytes, np.equal(segments, pieces))
        out = out + cases.spread(cases.seconds(kind, algorithm, pieces, way.root))
    return out


def placed(network_model: NetworkModel, placement: Placement) -> Placed:
    """The collectives of groups with this placement."""
    if placement not in network_model.known:
        network_model.known[placement] = Placed(network_model, placement)
    found = network_model.known[placement]
    assert isinstance(found, Placed)
    return found


class Placed:
    """The collectives of groups with one placement; equal ones are walked once."""

    def __init__(self, network_model: NetworkModel, placement: Placement) -> None:
        self.network_model, self.placement = network_model, placement
        self.machine, self.links = network_model.machine, LinkRates(network_model)
        self.level = int(network_model.index(placement.block, placement.ranks))
        #: Seconds by bytes of an item.
        self._alone_s: dict[tuple[str, Kind, int, int], Callable[[FloatArray], FloatArray]] = {}
        self._rates: dict[tuple[bytes, ...], tuple[IntArray, FloatArray]] = {}
        self._known: dict[tuple[str, Kind, int, int], dict[float, float]] = {}

    def seconds(self, kind: Kind, algorithm: str, segments: int, root: int, n_bytes: FloatArray
                ) -> FloatArray:
        """Seconds for each size, corrected by measurements where there are any."""
        seconds = self._modeled_s(kind, algorithm, segments, root, n_bytes)
        if not self.machine.collectives:
            return seconds
        if ALGORITHMS[algorithm].by_nodes and self.placement.inner > 1:
            return seconds * self._factor_of_phases(kind, algorithm, n_bytes)
        return seconds * self.network_model.factor(self.level, kind, algorithm, n_bytes)

    def _factor_of_phases(self, kind: Kind, algorithm: str, n_bytes: FloatArray) -> Floats:
        """The measured factors of the phases inside and between nodes, weighted by their times."""
        inside, outside = (placed(self.network_model, part) for part in self.placement.split())
        phases = [(outside, kind, n_bytes / inside.placement.p)] + [
            (inside, phase, n_bytes) for phase in SCATTERED if kind in (phase, Kind.ALLREDUCE)]
        modeled, measured = (
            sum(getattr(part, name)(phase, algorithm, 1, 0, n) for part, phase, n in phases)
            for name in ("_modeled_s", "seconds"))
        return np.divide(measured, modeled, out=np.ones_like(n_bytes), where=modeled > 0)

    def _modeled_s(self, kind: Kind, algorithm: str, segments: int, root: int,
                   n_bytes: FloatArray) -> FloatArray:
        entry = ALGORITHMS[algorithm]
        if algorithm == HOST and self.placement.p > 1:
            return host_s(self.network_model, kind, self.placement.ranks, self.placement.p, n_bytes)
        if entry.library:  # as fast as the fastest known algorithm
            return np.min([self._modeled_s(kind, name, segments, root, n_bytes)
                           for name in entry.priced_as if kind in ALGORITHMS[name].kinds], axis=0)
        if self.placement.p == 1:
            return np.zeros_like(n_bytes)
        key = entry.name, kind, segments, root
        if key not in self._alone_s:
            inner = self.placement.inner if entry.by_nodes else 1
            collective = Collective.of_blocks(kind, self.placement.p, NOMINAL_ITEMS, segments,
                                              inner, root)
            bounded = entry.together and self.placement.ranks > MOST_RANKS
            self._alone_s[key] = (self._bound if bounded else self._walk)(entry, collective)
        known = self._known.setdefault(key, {0.0: 0.0})
        new = sorted({n for n in n_bytes.tolist() if n not in known})
        for at in range(0, len(new), MOST_SIZES):
            some = new[at:at + MOST_SIZES]
            item_bytes = np.array(some) / (self.placement.p * NOMINAL_ITEMS)
            seconds = self._alone_s[key](item_bytes)
            known |= zip(some, seconds.tolist(), strict=True)
        return np.array([known[n] for n in n_bytes.tolist()])

    # -- all ranks ---------------------------------------------------------------------------------
    @cached_property
    def _members(self) -> IntArray:
        """The ranks of all groups: [groups, members]."""
        first = np.unique(self.placement.first_of(np.arange(self.placement.ranks)))
        return first[:, None] + self.placement.offset(np.arange(self.placement.p))

    def _walk(self, entry: Algorithm, collective: Collective
              ) -> Callable[[FloatArray], FloatArray]:
        """Seconds of a walk, in those groups whose messages have different rates."""
        waves = list(collective_waves(entry.name, collective))
        crossed: dict[Pairs, tuple[IntArray, FloatArray]] = {}
        for wave in waves:
            if wave.pairs not in crossed:
                crossed[wave.pairs] = self._rates_of(wave)
        slowest = max(s_per_byte.max() for _, s_per_byte in crossed.values()) or 1.0
        traits = np.concatenate([part for level, s_per_byte in crossed.values()
                                 for part in (level, np.round(s_per_byte / slowest, 12))], axis=1)
        first = list({row.tobytes(): i for i, row in enumerate(traits)}.values())
        groups = np.arange(len(first) * collective.p).reshape(-1, collective.p)
        known: dict[Pairs, Crossing] = {}
        rounds = []
        for wave, one in zip(between(waves, groups), waves, strict=True):
            if one.pairs not in known:
                level, s_per_byte = crossed[one.pairs]
                known[one.pairs] = Crossing.of(wave.pairs, level[first].ravel(),
                                               s_per_byte[first].ravel())
            rounds.append((wave, known[one.pairs]))
        in_flight = entry.in_flight(collective.kind, collective.segments)
        walk = Walk(rounds, self.links, in_flight, groups)
        alone_s = partial(walk.alone_s, add_s_per_byte=self.machine.add_s_per_byte)
        if walk.slowest is not None:
            return alone_s
        # where messages become too large for the latency of small ones
        limits = [-self.links.latencies_of(crossing.level)[2] / np.maximum(wave.items, 1)
                  for wave, crossing in rounds]
        return Pieces(alone_s, np.unique(np.concatenate(limits)))

    def _rates_of(self, wave: Wave) -> tuple[IntArray, FloatArray]:
        """The levels and inverse bandwidths of a wave's messages: [groups, messages]."""
        pairs = wave.pairs
        key = tuple(np.asarray(each).tobytes()
                    for each in (pairs.senders, pairs.receivers, wave.items / wave.items.max()))
        if key not in self._rates:
            everywhere, = between([wave], self._members)
            level, s_per_byte = rates(everywhere, self.links)
            shape = len(self._members), -1
            self._rates[key] = level.reshape(shape), s_per_byte.reshape(shape)
        return self._rates[key]

    # -- ranks near the ends of units --------------------------------------------------------------
    @cached_property
    def _some(self) -> IntArray:
        """Ranks at both ends of the job, and of the first and the last unit of each level."""
        ranks = self.placement.ranks
        return np.unique(np.concatenate([_ends(0, ranks), *(
            some for unit in self.network_model.inner[1:].tolist()
            for some in (_ends(0, min(unit, ranks)), _ends((ranks - 1) // unit * unit, ranks)))]))

    @cached_property
    def _units(self) -> list[tuple[IntArray, FloatArray]]:
        """For each level but the innermost: the unit of each of these ranks, and by unit its ranks
        over those counted here; 0 for units in the middle of which some are missing.
        """
        out = []
        for ranks in self.network_model.inner[1:].tolist():
            unit = self._some // ranks
            sizes = np.minimum(ranks, self.placement.ranks - np.arange(unit[-1] + 1) * ranks)
            counts = np.bincount(unit)
            known = counts == sizes
            known[[0, -1]] = True
            out.append((unit, np.where(known, sizes / np.maximum(counts, 1), 0.0)))
        return out

    def _bound(self, entry: Algorithm, collective: Collective
               ) -> Callable[[FloatArray], FloatArray]:
        """Upper bound of the seconds: all ranks wait for the slowest message of each wave."""
        me = self.placement.member(self._some)
        waves = []
        for r in entry.rounds(collective, me):
            sides = [self._messages(side) for side in (r.sends, r.recvs)]
            added = sides[1][1].sum(axis=0).max() if r.reduce else 0
            alike = [np.split(distinct([*level, *items])[0], 2) for level, items in sides]
            waves.append((r.times, self._s_per_byte(sides), added, alike))
        at_once = entry.in_flight(collective.kind, collective.segments) > 1

        def seconds(item_bytes: FloatArray) -> FloatArray:
            total, last = np.zeros((2, len(item_bytes)))
            for times, s_per_byte, added, sides in waves:
                message_s = np.max([self._seconds(level, items, s_per_byte, item_bytes).max(axis=1)
                                    for level, items in sides], axis=0)
                add_s = item_bytes * added * self.machine.add_s_per_byte
                if at_once:
                    total += times * np.maximum(message_s, add_s)
                    last = np.maximum(last, np.minimum(message_s, add_s))
                else:
                    total += times * (message_s + add_s)
            return total + last

        return seconds

    def _messages(self, side: Sequence[Message]) -> tuple[IntArray, IntArray]:
        """Level and items of the messages that some ranks send, or receive: [messages, ranks]."""
        ranks = self._some
        first = self.placement.first_of(ranks)
        level, items = np.zeros((2, max(1, len(side)), len(ranks)), np.int64)
        for i, m in enumerate(side):
            level[i] = self.network_model.between(ranks, first + self.placement.offset(m.peer))
            items[i] = np.subtract(m.stop, m.start)
        return level, items

    def _s_per_byte(self, sides: Sequence[tuple[IntArray, IntArray]]) -> FloatArray:
        """Inverse bandwidth of the messages that cross each level, with contention: [levels]."""
        inner = self.network_model.inner.tolist()
        flows = dict.fromkeys(inner, 1.0)
        for level, items in sides:
            sent = items > 0
            alone = sent / np.maximum(1, sent.sum(axis=0))  # one after another
            for i, (unit, times) in enumerate(self._units, 1):
                leave = np.bincount(unit, (alone * (level >= i)).sum(axis=0))
                flows[inner[i]] = max(flows[inner[i]], (leave * times).max())
        links = self.network_model.links(np.arange(len(inner)), lambda unit: flows[int(unit)])
        return np.broadcast_to(links.beta_s_per_byte, len(inner))

    def _seconds(self, level: IntArray, items: IntArray, s_per_byte: FloatArray,
                 item_bytes: FloatArray) -> FloatArray:
        """Seconds in which each rank sends (or receives) all its messages: [sizes, ranks]."""
        n_bytes = items * item_bytes[:, None, None]
        seconds = self.links.latencies_s(level, n_bytes) + s_per_byte[level] * n_bytes
        return np.where(items > 0, seconds, 0.0).sum(axis=1)


def _ends(start: int, stop: int) -> IntArray:
    """The ranks of a unit; of a large one those near its ends."""
    if stop - start <= MOST_UNIT:
        return np.arange(start, stop)
    half = MOST_UNIT // 2
    return np.concatenate([np.arange(start, start + half), np.arange(stop - half, stop)])
