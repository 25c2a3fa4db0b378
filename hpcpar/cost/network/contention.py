"""The network model: latency and bandwidth of the links that messages cross, with contention.

Links connect each unit of a level (a node, a rack) to the level above. If more of the job's flows
than links leave a unit at the same time, they share the bandwidth. Contention (ParaDL's phi) is the
number of flows per link; it follows from the placement of the step's ranks on units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.model import Level, Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Flags, Floats, Ints, MeshAxis, Numbers
from hpcpar.schedule.algorithms.base import SCATTERED, Algorithm, Collective
from hpcpar.schedule.steps import Kind
from hpcpar.schedule.waves import Wave, between, collective_waves

#: Items of a block in message tables that stand for any size: a number with many divisors.
NOMINAL_ITEMS = 5040
#: Maps the number of ranks in a unit to the number of messages that leave it at the same time.
Flows: TypeAlias = Callable[[Ints], Numbers]


@dataclass(frozen=True)
class Links:
    """Hockney's model of a message: alpha + beta * bytes; small messages have their own alpha."""

    alpha_s: Floats
    beta_s_per_byte: Floats
    small_alpha_s: Floats
    small_bytes: Numbers

    @classmethod
    def of(cls, level: Level) -> Links:
        """The links of a level, without contention between the job's flows."""
        small = level.alpha_s if level.small_alpha_s is None else level.small_alpha_s
        return cls(level.alpha_s, level.loaded_beta_s_per_byte, small, level.small_bytes)

    def latency_s(self, message_bytes: Numbers) -> Floats:
        """Latency of a message of this size."""
        if self.small_alpha_s is self.alpha_s:
            return self.alpha_s
        return np.where(np.less_equal(message_bytes, self.small_bytes), self.small_alpha_s,
                        self.alpha_s)

    def message_s(self, message_bytes: Numbers) -> Floats:
        """Seconds of one message."""
        return self.latency_s(message_bytes) + self.beta_s_per_byte * message_bytes


class NetworkModel:
    """A machine's levels as arrays.

    Parameters
    ----------
    contention : float, optional
        phi of every level except the innermost; by default it follows from the placement.
    """

    def __init__(self, machine: Machine, contention: float | None = None) -> None:
        self.machine, self.contention = machine, contention
        self._names = [level.name for level in machine.levels]
        levels = [Links.of(level) for level in machine.levels]
        self.single = levels[0] if len(levels) == 1 else None
        self._alpha, self._beta, self._small, self._bytes = (
            np.array([getattr(links, name) for links in levels])
            for name in ("alpha_s", "beta_s_per_byte", "small_alpha_s", "small_bytes")
        )
        self.plain = bool((self._alpha == self._small).all())
        self.shared = np.array([level.shared_links for level in machine.levels])
        #: The links of a machine with a single level and no contention.
        self.uniform = self.single if contention is None and np.isinf(self.shared[0]) else None
        self.inner = np.array([machine.inner_ranks(i) for i in range(len(machine.levels))])
        self._walks: dict[tuple[Hashable, ...], Walk] = {}

    def index(self, block: Ints, ranks: Ints) -> Ints:
        """Index of the level that groups in aligned blocks of `block` ranks cross."""
        if self.single is not None:
            return 0
        return self.machine.level_index_for(np.asarray(block), np.asarray(ranks))

    def between(self, first: Ints, last: Ints) -> NDArray[np.int64]:
        """Index of the innermost level whose unit holds both ranks."""
        out: Ints = len(self.inner) - 1
        for i in reversed(range(len(self.inner))):
            unit = self.machine.levels[i].ranks
            out = np.where(np.equal(first // unit, last // unit), i, out) if unit else i
        return np.asarray(out)

    def links(self, index: Ints, flows: Flows) -> Links:
        """The links of messages whose outermost level is `index`.

        On its way a message leaves one unit of every level, and the slowest of these units' links
        determines its bandwidth. `flows` maps the ranks of a unit to the flows that leave it.
        """
        beta: Floats = self._beta[0] * self._phi(0, flows)
        path: Floats = 0.0
        for level in range(1, len(self.shared)):
            path = np.maximum(path, self._beta[level] * self._phi(level, flows))
            beta = np.where(np.equal(index, level), path, beta)
        alpha = self._alpha[index]
        small = alpha if self.plain else self._small[index]
        return Links(alpha, beta, small, self._bytes[index])

    def factor(self, index: Ints, kind: Kind, algorithm: str, n_bytes: Numbers) -> Floats:
        """Ratio of measured to modeled time of a movement; 1 if it was not measured."""
        factor: Floats = 1.0
        log_bytes = np.log(np.maximum(n_bytes, 1))
        for curve in self.machine.collectives:
            if (curve.kind, curve.algorithm) != (kind.value, algorithm):
                continue
            if curve.level in self._names:
                at_level = np.equal(index, self._names.index(curve.level))
                measured = np.interp(log_bytes, np.log(curve.bytes), curve.factors)
                factor = np.where(at_level, measured, factor)
        return factor

    def walk(self, algorithm: str, collective: Collective, *placement: int) -> Walk:
        """The messages of a collective in groups with this placement (see `Walk.of`)."""
        key = (algorithm, collective, placement)
        if key not in self._walks:
            self._walks[key] = Walk.of(self, algorithm, collective, *placement)
        return self._walks[key]

    def _phi(self, level: int, flows: Flows) -> Floats:
        """Contention of a level: flows per link, at least 1."""
        if self.contention is not None:
            return self.contention if level else 1.0
        if np.isinf(self.shared[level]):
            return 1.0
        return np.maximum(1.0, flows(self.inner[level]) / self.shared[level])


class Messages(NamedTuple):
    """Messages of all groups that travel at the same time: [messages].

    Attributes
    ----------
    senders, receivers : ndarray
        Ranks.
    share, added : ndarray
        Fractions of the buffer that a message carries, and that its receiver adds.
    disjoint : bool
        No rank sends or receives more than one message.
    """

    senders: IntArray
    receivers: IntArray
    share: NDArray[np.float64]
    added: NDArray[np.float64]
    disjoint: bool
    links: Links

    def seconds(self, n_bytes: NDArray[np.float64], add_s_per_byte: float, ranks: int
                ) -> NDArray[np.float64]:
        """Seconds of each message, for each size of buffer: [messages, sizes].

        A rank sends (and receives) its messages one after another.
        """
        seconds = np.stack([self.links.message_s(n * self.share) + n * self.added * add_s_per_byte
                            for n in n_bytes.tolist()], axis=1)
        if self.disjoint:
            return seconds
        sent, received = np.zeros((2, ranks, len(n_bytes)))
        np.add.at(sent, self.senders, seconds)
        np.add.at(received, self.receivers, seconds)
        return np.maximum(sent[self.senders], received[self.receivers])


@dataclass(frozen=True)
class Walk:
    """The rounds of a collective in all groups at once, and the links that each message crosses."""

    ranks: int
    rounds: list[Messages]

    @classmethod
    def of(cls, network_model: NetworkModel, algorithm: str, collective: Collective,
           ranks: int, p: int, stride: int, block: int, inner: int) -> Walk:
        """The rounds in groups with the placement of a `Route`."""
        rank = np.arange(ranks)
        run_distance = block * inner // p
        first = rank[(rank // stride % inner == 0) & (rank % block < run_distance)]
        member = np.arange(p)
        members = first[:, None] + member % inner * stride + member // inner * run_distance
        whole = sum(collective.sizes) if collective.kind in SCATTERED else collective.sizes[0]
        waves = between(collective_waves(algorithm, collective), members)
        return cls(1 + int(members.max()), [linked for wave in waves for linked in
                                            [_linked(network_model, wave, whole)] * wave.times])

    def seconds(self, n_bytes: NDArray[np.float64], add_s_per_byte: float) -> NDArray[np.float64]:
        """Seconds of the collective and of its slowest message, for each size: [2, sizes].

        A message starts when both of its ends are ready.
        """
        ready, slowest = np.zeros((self.ranks, len(n_bytes))), np.zeros(len(n_bytes))
        for messages in self.rounds:
            senders, receivers = messages.senders, messages.receivers
            seconds = messages.seconds(n_bytes, add_s_per_byte, self.ranks)
            slowest = np.maximum(slowest, seconds.max(axis=0))
            end = np.maximum(ready[senders], ready[receivers]) + seconds
            for ends in (senders, receivers):
                if messages.disjoint:
                    ready[ends] = np.maximum(ready[ends], end)
                else:
                    np.maximum.at(ready, ends, end)
        return np.stack([ready.max(axis=0), slowest])


def _linked(network_model: NetworkModel, wave: Wave, whole: int) -> Messages:
    """The messages of a wave, with their links.

    If a rank sends or receives n messages one after another, each occupies the links for 1 / n of
    the time.
    """
    ends = wave.pairs.senders, wave.pairs.receivers
    counts = [np.bincount(end)[end] for end in ends]
    occupancy = 1.0 / np.maximum(*counts)

    def flows(unit: Ints) -> float:
        a, b = (end // unit for end in ends)
        leaves = a != b
        return max(float(np.bincount(end[leaves], occupancy[leaves], 1).max()) for end in (a, b))

    links = network_model.links(network_model.between(*ends), flows)
    share = wave.items / whole
    return Messages(*ends, share, share * wave.adds, bool(np.all(occupancy == 1)), links)


@dataclass(frozen=True)
class Route:
    """The placement of a collective's groups on the machine.

    Attributes
    ----------
    ranks : int
        Ranks that take part, over all groups.
    p, stride, block : int
        Members of a group, their smallest distance, and ranks of the aligned block that they span.
    inner, node : int
        Members of a group in each node, and ranks of a node; 1 and 0 unless each group spans
        several nodes with the same number of members in each.
    root : int
        The member where a reduction ends or a broadcast starts.
    """

    network_model: NetworkModel
    ranks: Ints
    p: Ints
    stride: Ints
    block: Ints
    inner: Ints = 1
    node: Ints = 0
    root: int = 0

    def at(self, cases: tuple[NDArray[np.intp], ...], shape: tuple[int, ...]) -> Route:
        """The routes of some plans of a family, by their indices in an array of this shape."""
        values = (np.broadcast_to(value, shape)[cases]
                for value in (self.ranks, self.p, self.stride, self.block, self.inner, self.node))
        ranks, p, stride, block, inner, node = values
        return Route(self.network_model, ranks, p, stride, block, inner, node, self.root)

    @cached_property
    def level(self) -> Ints:
        """Index of the level that the groups cross."""
        return self.network_model.index(self.block, self.ranks)

    @cached_property
    def far(self) -> Links:
        """The links between the slowest neighbors of a ring.

        Every group with members in a unit sends one flow out of it.
        """
        return self.network_model.uniform or self.network_model.links(self.level, self._rings)

    def _rings(self, unit: Ints) -> Floats:
        """Number of groups with members in a unit."""
        unit = np.minimum(unit, self.ranks)
        return unit / np.clip(unit // self.stride, 1, self.p)

    def hop(self, doubling: int, around: bool = False) -> Links:
        """The links between partners at distance 2^doubling, in aligned blocks of twice that.

        With `around`, every member sends to the one 2^doubling further around the group. All ranks
        of a unit send at once, or only those near its ends, whose partners lie beyond.
        """
        if self.network_model.uniform:
            return self.network_model.uniform
        if (doubling, around) not in self._hops:
            reach = self.stride * (2 << doubling)
            level = self.level if around else self.network_model.index(
                np.minimum(self.block, reach), self.ranks)
            self._hops[doubling, around] = self.network_model.links(
                level, lambda unit: np.minimum(np.minimum(unit, self.ranks), reach))
        return self._hops[doubling, around]

    @cached_property
    def split(self) -> tuple[Route, Route] | None:
        """The routes inside and between nodes; None if no group has both."""
        if not np.any(np.greater(self.inner, 1)):
            return None
        inside = Route(self.network_model, self.ranks, self.inner, self.stride,
                       self.stride * self.inner)
        stride = np.maximum(self.node, self.stride * self.inner)
        return inside, Route(self.network_model, self.ranks, self.p // self.inner, stride,
                             self.block)

    @cached_property
    def crosses(self) -> Flags:
        """True where a group has different links between its members."""
        return np.greater(self.level, 0) & (self.network_model.uniform is None)

    def table_s(self, algorithm: Algorithm, kind: Kind, n_bytes: Numbers, segments: Ints,
                add_s_per_byte: float, where: Flags) -> tuple[Floats, Floats]:
        """Seconds of a collective and of its slowest message, from its table of messages.

        Both are nan outside of `where`.
        """
        if not np.any(where):
            return math.nan, math.nan
        where, n_bytes, *placements = np.broadcast_arrays(
            where, np.asarray(n_bytes, np.float64), segments, self.ranks, self.p, self.stride,
            self.block, self.inner)
        out = np.full((2, *where.shape), math.nan)
        cases, index = np.unique(np.stack(placements)[:, where], axis=1, return_inverse=True)
        seconds = np.empty((2, index.size))
        for i, (pieces, *placement) in enumerate(cases.T.tolist()):
            same = np.ravel(index) == i
            p, inner = placement[1], placement[-1] if algorithm.by_nodes else 1
            nominal = Collective.of(kind, p, p * NOMINAL_ITEMS, pieces, inner, self.root)
            walk = self.network_model.walk(algorithm.name, nominal, *placement)
            # the plans of a search have few distinct sizes
            sizes, place = np.unique(n_bytes[where][same], return_inverse=True)
            seconds[:, same] = walk.seconds(sizes, add_s_per_byte)[:, place]
        out[:, where] = seconds
        return out[0], out[1]

    def factor(self, kind: Kind, algorithm: str, n_bytes: Numbers) -> Floats | None:
        """Ratio of measured to modeled time of a collective; None without any measurements."""
        if not self.network_model.machine.collectives:
            return None
        return self.network_model.factor(self.level, kind, algorithm, n_bytes)

    @cached_property
    def _hops(self) -> dict[tuple[int, bool], Links]:
        return {}


def route(network_model: NetworkModel, mesh_axes: Sequence[MeshAxis], ranks: Ints,
          root: int = 0) -> Route:
    """The route of groups whose members differ in `mesh_axes`."""
    p: Ints = 1
    block: Ints = 1
    stride: Ints | None = None
    for d in mesh_axes:
        counts = np.greater(d.size, 1)
        p = p * d.size
        block = np.maximum(block, np.where(counts, d.stride * d.size, 1))
        near = np.where(counts, d.stride, ranks)
        stride = near if stride is None else np.minimum(stride, near)
    inner, node = _runs(network_model, mesh_axes, p)
    return Route(network_model, ranks, p, 1 if stride is None else stride, block, inner, node,
                 root)


def _runs(network_model: NetworkModel, mesh_axes: Sequence[MeshAxis], p: Ints) -> tuple[Ints, Ints]:
    """Members of a group in each node, and ranks of a node.

    The nodes are the units of the innermost level that divides each group into equal runs of more
    than one member.
    """
    inner: Ints = 1
    node: Ints = 0
    for unit in network_model.inner[:0:-1].tolist():
        members: Ints = 1
        equal: Flags = True
        for d in mesh_axes:
            stride = np.maximum(d.stride, 1)  # 0 where there is no such axis
            within = np.clip(unit // stride, 1, d.size)
            equal = equal & (unit % stride * (stride < unit) == 0) & (d.size % within == 0)
            members = members * within
        runs = equal & np.greater(members, 1) & np.less(members, p)
        inner, node = np.where(runs, members, inner), np.where(runs, unit, node)
    return inner, node
