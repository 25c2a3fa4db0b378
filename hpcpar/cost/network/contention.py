"""The network model: latency and bandwidth of the links that messages cross, with contention.

A unit of a level (a node, a rack) is attached to the level above by some links. Where more of the
job's own flows leave it at the same time, they share the bandwidth. Contention (ParaDL's phi) is
flows per link. It follows from the placement of the step's ranks on units.
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
from hpcpar.schedule.waves import Wave, table

#: Items of a block in tables of messages that are priced for any size: a multiple of many numbers.
NOMINAL_ITEMS = 5040
#: From the ranks of a unit to the messages that leave it at the same time.
Flows: TypeAlias = Callable[[Ints], Numbers]


@dataclass(frozen=True)
class Links:
    """Hockney's model of a message: alpha + beta * bytes, with another alpha for small messages."""

    alpha_s: Floats
    beta_s_per_byte: Floats
    small_alpha_s: Floats
    small_bytes: Numbers

    @classmethod
    def of(cls, level: Level) -> Links:
        """The links of one level without contention of the job's own flows."""
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
        phi of every level but the innermost, instead of what follows from the placement.
    """

    def __init__(self, machine: Machine, contention: float | None = None) -> None:
        self.machine, self.contention = machine, contention
        self._names = [level.name for level in machine.levels]
        each = [Links.of(level) for level in machine.levels]
        self.single = each[0] if len(each) == 1 else None
        self._alpha, self._beta, self._small, self._bytes = (
            np.array([getattr(links, name) for links in each])
            for name in ("alpha_s", "beta_s_per_byte", "small_alpha_s", "small_bytes")
        )
        self.plain = bool((self._alpha == self._small).all())
        self.shared = np.array([level.shared_links for level in machine.levels])
        #: The only links that there are, where there is one level and nobody shares it.
        self.alone = self.single if self.contention is None and np.isinf(self.shared[0]) else None
        self.inner = np.array([machine.inner_ranks(i) for i in range(len(machine.levels))])
        self._walks: dict[tuple[Hashable, ...], Walk] = {}

    def index(self, block: Ints, ranks: Ints) -> Ints:
        """Index of the level that groups within aligned blocks of `block` ranks cross."""
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
        """The links of messages that cross a level.

        A message leaves one unit of every level on its way, through that unit's links. The slowest
        of these links decide.

        Parameters
        ----------
        index : int
            The outermost level that is crossed.
        flows : callable
            From the ranks of a unit to the flows that leave it at the same time.
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
        """Measured over modelled time of a collective or point-to-point movement; 1 if unknown."""
        factor: Floats = 1.0
        log_bytes = np.log(np.maximum(n_bytes, 1))
        for known in self.machine.collectives:
            if (known.kind, known.algorithm) != (kind.value, algorithm):
                continue
            if known.level in self._names:
                here = np.equal(index, self._names.index(known.level))
                measured = np.interp(log_bytes, np.log(known.bytes), known.factors)
                factor = np.where(here, measured, factor)
        return factor

    def walk(self, algorithm: str, collective: Collective, *lies: int) -> Walk:
        """The messages of a collective in groups that lie so (`Walk.of`)."""
        key = (algorithm, collective, lies)
        if key not in self._walks:
            self._walks[key] = Walk.of(self, algorithm, collective, *lies)
        return self._walks[key]

    def _phi(self, level: int, flows: Flows) -> Floats:
        """Contention of a level: flows per link, at least 1."""
        if self.contention is not None:
            return self.contention if level else 1.0
        if np.isinf(self.shared[level]):
            return 1.0
        return np.maximum(1.0, flows(self.inner[level]) / self.shared[level])


class Messages(NamedTuple):
    """Messages of all groups that travel together: [messages].

    Attributes
    ----------
    senders, receivers : ndarray
        Ranks.
    share, added : ndarray
        Parts of the buffer that a message has, and that its receiver adds.
    alone : bool
        No rank sends or receives two of them.
    links : Links
    """

    senders: IntArray
    receivers: IntArray
    share: NDArray[np.float64]
    added: NDArray[np.float64]
    alone: bool
    links: Links

    def seconds(self, n_bytes: NDArray[np.float64], add_s_per_byte: float, ranks: int
                ) -> NDArray[np.float64]:
        """Seconds of each message on buffers of several sizes: [messages, sizes]. Those of a rank
        go, and come, one after another.
        """
        each = np.stack([self.links.message_s(n * self.share) + n * self.added * add_s_per_byte
                         for n in n_bytes.tolist()], axis=1)
        if self.alone:
            return each
        sent, received = np.zeros((2, ranks, len(n_bytes)))
        np.add.at(sent, self.senders, each)
        np.add.at(received, self.receivers, each)
        return np.maximum(sent[self.senders], received[self.receivers])


@dataclass(frozen=True)
class Walk:
    """The messages of a collective in all groups at once, with the links that each crosses."""

    ranks: int
    rounds: list[Messages]

    @classmethod
    def of(cls, network_model: NetworkModel, algorithm: str, collective: Collective,
           ranks: int, p: int, stride: int, block: int, inner: int) -> Walk:
        """The rounds in groups that lie as a `Route` says."""
        rank = np.arange(ranks)
        apart = block * inner // p  # runs of members
        first = rank[(rank // stride % inner == 0) & (rank % block < apart)]
        member = np.arange(p)
        members = first[:, None] + member % inner * stride + member // inner * apart
        whole = sum(collective.sizes) if collective.kind in SCATTERED else collective.sizes[0]
        waves = (wave.between(members) for _, wave in table(algorithm, collective))
        return cls(1 + int(members.max()),
                   [_linked(network_model, wave, whole) for wave in waves])

    def seconds(self, n_bytes: NDArray[np.float64], add_s_per_byte: float) -> NDArray[np.float64]:
        """Seconds of the collective, and of its slowest message, for each of several sizes: [2,
        sizes]. A message begins when both ends are ready.
        """
        ready, slowest = np.zeros((self.ranks, len(n_bytes))), np.zeros(len(n_bytes))
        for messages in self.rounds:
            senders, receivers = messages.senders, messages.receivers
            seconds = messages.seconds(n_bytes, add_s_per_byte, self.ranks)
            slowest = np.maximum(slowest, seconds.max(axis=0))
            end = np.maximum(ready[senders], ready[receivers]) + seconds
            for ends in (senders, receivers):
                if messages.alone:
                    ready[ends] = np.maximum(ready[ends], end)
                else:
                    np.maximum.at(ready, ends, end)
        return np.stack([ready.max(axis=0), slowest])


def _linked(network_model: NetworkModel, wave: Wave, whole: int) -> Messages:
    """A wave with its links. A rank that sends or receives several messages has each of them on the
    links for a part of the time.
    """
    ends = wave.pairs.senders, wave.pairs.receivers
    counts = [np.bincount(end)[end] for end in ends]
    present = 1.0 / np.maximum(*counts)

    def flows(unit: Ints) -> float:
        a, b = (end // unit for end in ends)
        leaves = a != b
        return max(float(np.bincount(end[leaves], present[leaves], 1).max()) for end in (a, b))

    links = network_model.links(network_model.between(*ends), flows)
    share = wave.items / whole
    return Messages(*ends, share, share * wave.adds, bool(np.all(present == 1)), links)


@dataclass(frozen=True)
class Route:
    """How the groups of a collective lie on the machine.

    Attributes
    ----------
    ranks : int
        Ranks that take part, in all groups.
    p, stride, block : int
        Members of a group, their smallest distance, and ranks of the aligned block that they span.
    inner, node : int
        Members of a group in each node, and ranks of a node. 1 and 0 where groups do not lie in
        equal runs on several nodes.
    root : int
        The member that a reduction ends at, or a broadcast begins at.
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
        """The route of some cases, given by their indices in an array of shape `shape`."""
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
        """The links of a ring's slowest neighbours.

        Every group that reaches into a unit sends one flow out of it.
        """
        return self.network_model.alone or self.network_model.links(self.level, self._rings)

    def _rings(self, unit: Ints) -> Floats:
        """Groups that reach into a unit."""
        unit = np.minimum(unit, self.ranks)
        return unit / np.clip(unit // self.stride, 1, self.p)

    def hop(self, doubling: int, around: bool = False) -> Links:
        """The links of partners at distance 2^doubling in aligned blocks of twice that; or, with
        `around`, of every member and the one 2^doubling further on around the group.

        All ranks of a unit send at once, or those near its ends whose partners are beyond.
        """
        if self.network_model.alone:
            return self.network_model.alone
        if (doubling, around) not in self._hops:
            reach = self.stride * (2 << doubling)
            level = self.level if around else self.network_model.index(
                np.minimum(self.block, reach), self.ranks)
            self._hops[doubling, around] = self.network_model.links(
                level, lambda unit: np.minimum(np.minimum(unit, self.ranks), reach))
        return self._hops[doubling, around]

    @cached_property
    def split(self) -> tuple[Route, Route] | None:
        """The routes inside nodes and between them; None where no group has both."""
        if not np.any(np.greater(self.inner, 1)):
            return None
        inside = Route(self.network_model, self.ranks, self.inner, self.stride,
                       self.stride * self.inner)
        stride = np.maximum(self.node, self.stride * self.inner)
        return inside, Route(self.network_model, self.ranks, self.p // self.inner, stride,
                             self.block)

    @cached_property
    def crosses(self) -> Flags:
        """True where members differ in the links between them."""
        return np.greater(self.level, 0) & (self.network_model.alone is None)

    def table_s(self, algorithm: Algorithm, kind: Kind, n_bytes: Numbers, segments: Ints,
                add_s_per_byte: float, where: Flags) -> tuple[Floats, Floats]:
        """Seconds of a collective message by message, over the links between the members, and of
        its slowest message, in the cases `where`; elsewhere nan.
        """
        if not np.any(where):
            return math.nan, math.nan
        where, n_bytes, *lies = np.broadcast_arrays(
            where, np.asarray(n_bytes, np.float64), segments, self.ranks, self.p, self.stride,
            self.block, self.inner)
        out = np.full((2, *where.shape), math.nan)
        cases, which = np.unique(np.stack(lies)[:, where], axis=1, return_inverse=True)
        found = np.empty((2, which.size))
        for i, (pieces, *case) in enumerate(cases.T.tolist()):
            here = np.ravel(which) == i
            p, inner = case[1], case[-1] if algorithm.by_nodes else 1
            nominal = Collective.of(kind, p, p * NOMINAL_ITEMS, pieces, inner, self.root)
            walk = self.network_model.walk(algorithm.name, nominal, *case)
            found[:, here] = walk.seconds(n_bytes[where][here], add_s_per_byte)
        out[:, where] = found
        return out[0], out[1]

    def factor(self, kind: Kind, algorithm: str, n_bytes: Numbers) -> Floats | None:
        """Measured over modelled time of a collective; None where nothing was measured."""
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
    """Members in each node and ranks of a node: of the innermost level whose units each hold
    equally many of a group's members, but not all.
    """
    inner: Ints = 1
    node: Ints = 0
    for unit in network_model.inner[:0:-1].tolist():
        here: Ints = 1
        equal: Flags = True
        for d in mesh_axes:
            stride = np.maximum(d.stride, 1)  # 0 where there is no such axis
            within = np.clip(unit // stride, 1, d.size)
            equal = equal & (unit % stride * (stride < unit) == 0) & (d.size % within == 0)
            here = here * within
        runs = equal & np.greater(here, 1) & np.less(here, p)
        inner, node = np.where(runs, here, inner), np.where(runs, unit, node)
    return inner, node
