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
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.model import Level, Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Flags, Floats, Ints, MeshAxis, Numbers
from hpcpar.schedule.steps import Algorithm, Kind
from hpcpar.schedule.waves import member_waves

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

    def factor(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers) -> None:
        """Nothing is known of collectives."""
        return

    @property
    def far(self) -> Links:
        return self

    def hop(self, doubling: int, around: bool = False) -> Links:
        return self

    def walked_s(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers, segments: Ints,
                 add_s_per_byte: float) -> float:
        """All messages cross the same links."""
        return math.nan

    @property
    def split(self) -> None:
        """There are no nodes."""
        return


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

    def factor(self, index: Ints, kind: Kind, algorithm: Algorithm, n_bytes: Numbers) -> Floats:
        """Measured over modelled time of a collective or point-to-point movement; 1 if unknown."""
        factor: Floats = 1.0
        log_bytes = np.log(np.maximum(n_bytes, 1))
        for known in self.machine.collectives:
            if (known.kind, known.algorithm) != (kind.value, algorithm.value):
                continue
            if known.level in self._names:
                here = np.equal(index, self._names.index(known.level))
                measured = np.interp(log_bytes, np.log(known.bytes), known.factors)
                factor = np.where(here, measured, factor)
        return factor

    def walk(self, kind: Kind, algorithm: Algorithm, root: int, *lies: int) -> Walk:
        """The rounds of a collective of groups that lie so (`Walk.of`)."""
        key = (kind, algorithm, root, lies)
        if key not in self._walks:
            self._walks[key] = Walk.of(self, kind, algorithm, root, *lies)
        return self._walks[key]

    def _phi(self, level: int, flows: Flows) -> Floats:
        """Contention of a level: flows per link, at least 1."""
        if self.contention is not None:
            return self.contention if level else 1.0
        if np.isinf(self.shared[level]):
            return 1.0
        return np.maximum(1.0, flows(self.inner[level]) / self.shared[level])


@dataclass(frozen=True)
class Walk:
    """The rounds of a collective in all groups at once, with the links that each message crosses.

    Attributes
    ----------
    ranks, groups : int
    serial : bool
        The root's messages follow each other, in one round.
    rounds : list of (senders, receivers, Links)
        Ranks, all groups' messages one group after another.
    """

    ranks: int
    groups: int
    serial: bool
    rounds: list[tuple[IntArray, IntArray, Links]]

    @classmethod
    def of(cls, network_model: NetworkModel, kind: Kind, algorithm: Algorithm, root: int,
           ranks: int, p: int, stride: int, block: int, inner: int) -> Walk:
        """The rounds in groups that lie as a `Route` says."""
        rank = np.arange(ranks)
        apart = block * inner // p  # runs of members
        first = rank[(rank // stride % inner == 0) & (rank % block < apart)]
        member = np.arange(p)
        members = first[:, None] + member % inner * stride + member // inner * apart
        rounds = []
        for pairs in member_waves(kind, algorithm, p, root):
            ends = members[:, pairs.senders].ravel(), members[:, pairs.receivers].ravel()
            turns = p - 1 if algorithm is Algorithm.DIRECT else 1

            def flows(unit: Ints, ends: Sequence[IntArray] = ends, turns: int = turns) -> float:
                a, b = (end // unit for end in ends)
                counts = [np.bincount(end[a != b], minlength=1) for end in (a, b)]
                return float(np.max(np.concatenate(counts))) / turns

            links = network_model.links(network_model.between(*ends), flows)
            rounds.append((*ends, links))
        return cls(1 + int(members.max()), len(first), algorithm is Algorithm.DIRECT, rounds)

    def seconds(self, n_bytes: NDArray[np.float64], segments: IntArray,
                add_s_per_byte: float) -> NDArray[np.float64]:
        """Seconds for each of several sizes.

        A message begins when both ends are ready. Segments follow each other at the pace of the
        slowest link.
        """
        piece = (n_bytes / segments)[:, None]
        ready, pace = np.zeros((len(piece), self.ranks)), np.zeros(len(piece))
        for senders, receivers, links in self.rounds:
            seconds = links.message_s(piece) + add_s_per_byte * piece
            pace = np.maximum(pace, seconds.max(axis=1))
            if self.serial:
                return seconds.reshape(len(piece), self.groups, -1).sum(axis=2).max(axis=1)
            end = np.maximum(ready[:, senders], ready[:, receivers]) + seconds
            ready[:, senders] = end
            ready[:, receivers] = np.maximum(ready[:, receivers], end)
        return ready.max(axis=1) + (segments - 1) * pace


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

    def walked_s(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers, segments: Ints,
                 add_s_per_byte: float) -> Floats:
        """Seconds of a collective whose messages are all of one size, round by round, over the
        links between the members; nan where the formulas hold.
        """
        walks = np.greater(self.level, 0)
        if kind is Kind.ALLREDUCE:
            walks = walks & np.not_equal(self.p & (self.p - 1), 0)
        if self.network_model.alone or not np.any(walks):
            return math.nan
        walks, n_bytes, segments, *lies = np.broadcast_arrays(
            walks, n_bytes, segments, self.ranks, self.p, self.stride, self.block, self.inner)
        out = np.full(walks.shape, math.nan)
        cases, which = np.unique(np.stack(lies)[:, walks], axis=1, return_inverse=True)
        found = np.empty(which.shape)
        for i, case in enumerate(cases.T.tolist()):
            here = which == i
            walk = self.network_model.walk(kind, algorithm, self.root, *case)
            found[here] = walk.seconds(n_bytes[walks][here], segments[walks][here], add_s_per_byte)
        out[walks] = found
        return out

    def factor(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers) -> Floats | None:
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


def doublings(p: Ints) -> int:
    """ceil(log2) of the largest p."""
    return math.ceil(math.log2(max(1, int(np.max(p)))))
