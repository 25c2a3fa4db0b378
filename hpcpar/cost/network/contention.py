"""Decides the latency and the bandwidth of the links that messages cross, with contention.

Links connect each unit of a level (a node, a rack) to the level above. If more of the job's flows
than links leave a unit at the same time, they share the bandwidth. Contention (ParaDL's phi) is the
number of flows per link; it follows from the placement of the step's ranks on units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.model import Level, Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats, Ints, MeshAxis, Numbers
from hpcpar.schedule.steps import Kind

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


def contended(machine: Machine, contention: float | None) -> Machine:
    """The machine with a fixed phi, the number of flows on each link beyond the innermost level."""
    if contention is None:
        return machine
    levels = [replace(level, links=0.0, oversubscription=1.0,
                      beta_s_per_byte=level.beta_s_per_byte * (contention if number else 1))
              for number, level in enumerate(machine.levels)]
    return replace(machine, levels=tuple(levels))


class NetworkModel:
    """A machine's levels as arrays."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._names = [level.name for level in machine.levels]
        levels = [Links.of(level) for level in machine.levels]
        self.single = levels[0] if len(levels) == 1 else None
        self.alpha_s, self.beta_s_per_byte, self.small_alpha_s, self.small_bytes = (
            np.array([getattr(links, name) for links in levels])
            for name in ("alpha_s", "beta_s_per_byte", "small_alpha_s", "small_bytes")
        )
        self.plain = bool((self.alpha_s == self.small_alpha_s).all())
        self.shared = np.array([level.shared_links for level in machine.levels])
        #: The links of a machine with a single level and no contention.
        self.uniform = self.single if np.isinf(self.shared[0]) else None
        self.inner = np.array([machine.inner_ranks(i) for i in range(len(machine.levels))])
        #: Collectives by placement and simulated movements, whose times are known.
        self.known: dict[Hashable, object] = {}

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
        beta: Floats = self.beta_s_per_byte[0] * self._phi(0, flows)
        path: Floats = 0.0
        for level in range(1, len(self.shared)):
            path = np.maximum(path, self.beta_s_per_byte[level] * self._phi(level, flows))
            beta = np.where(np.equal(index, level), path, beta)
        alpha = self.alpha_s[index]
        small = alpha if self.plain else self.small_alpha_s[index]
        return Links(alpha, beta, small, self.small_bytes[index])

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

    def _phi(self, level: int, flows: Flows) -> Floats:
        """Contention of a level: flows per link, at least 1."""
        if np.isinf(self.shared[level]):
            return 1.0
        return np.maximum(1.0, flows(self.inner[level]) / self.shared[level])


class NetworkModels(dict[Machine, NetworkModel]):
    """The network models of machines: equal machines share one, with the prices that it knows."""

    def __missing__(self, machine: Machine) -> NetworkModel:
        return self.setdefault(machine, NetworkModel(machine))


class Placement(NamedTuple):
    """Where the groups of a collective lie.

    Attributes
    ----------
    ranks : int
        Ranks that take part, over all groups.
    axes : tuple of (int, int)
        Stride and size of the coordinates in which the members of a group differ.
    inner, node : int
        As in `Route`.
    """

    ranks: int
    axes: tuple[tuple[int, int], ...]
    inner: int
    node: int

    @classmethod
    def of(cls, ranks: int, inner: int, node: int, *axes: int) -> Placement:
        """Coordinates in pairs of stride and size; neighboring ones are joined."""
        joined: list[tuple[int, int]] = []
        for stride, size in sorted(zip(axes[::2], axes[1::2], strict=True)):
            if joined and math.prod(joined[-1]) == stride:
                joined[-1] = joined[-1][0], joined[-1][1] * size
            elif size > 1:
                joined.append((stride, size))
        return cls(ranks, tuple(joined), inner, node)

    @property
    def p(self) -> int:
        """Members of a group."""
        return math.prod(size for _, size in self.axes)

    @property
    def block(self) -> int:
        """Ranks of the aligned block that a group spans."""
        return max((stride * size for stride, size in self.axes), default=1)

    def first_of(self, rank: IntArray) -> IntArray:
        """The first rank in the group of a rank."""
        for stride, size in self.axes:
            rank = rank - rank // stride % size * stride
        return rank

    def member(self, rank: IntArray) -> IntArray:
        """The position of ranks in their groups."""
        out, before = np.zeros_like(rank), 1
        for stride, size in self.axes:
            out, before = out + rank // stride % size * before, before * size
        return out

    def offset(self, member: IntArray) -> IntArray:
        """The distances of members from the first rank of their group."""
        out = np.zeros_like(member)
        for stride, size in self.axes:
            out, member = out + member % size * stride, member // size
        return out

    def split(self) -> tuple[Placement, Placement]:
        """The placements inside and between nodes, of groups that have both."""
        inside, between_ = [], []
        for stride, size in self.axes:
            within = min(max(self.node // stride, 1), size)
            inside += [stride, within]
            between_ += [stride * within, size // within]
        return (Placement.of(self.ranks, 1, 0, *inside), Placement.of(self.ranks, 1, 0, *between_))


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
    which : int
        Index of the placement in each plan of a family.
    placements : ndarray
        [:, placements] ranks, inner, node, and stride and size of each coordinate in which the
        members of a group differ.
    """

    network_model: NetworkModel
    ranks: Ints
    p: Ints
    stride: Ints
    block: Ints
    inner: Ints
    node: Ints
    root: int
    which: IntArray
    placements: IntArray

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


def route(network_model: NetworkModel, mesh_axes: Sequence[MeshAxis], ranks: Ints,
          root: int = 0) -> Route:
    """The route of groups whose members differ in `mesh_axes`."""
    cases = np.broadcast_arrays(ranks, *(part for d in mesh_axes for part in (d.stride, d.size)))
    rows, index = distinct([case.ravel() for case in cases])
    which = index.reshape(cases[0].shape)
    size = rows[2::2]
    stride = np.where(size > 1, rows[1::2], rows[0])
    p, block = size.prod(axis=0), np.where(size > 1, stride * size, 1).max(axis=0, initial=1)
    inner, node = _runs(network_model, rows[1::2], size, p)
    near = stride.min(axis=0) if len(size) else np.ones_like(p)
    return Route(network_model, ranks, p=p[which], stride=near[which], block=block[which],
                 inner=inner[which], node=node[which], root=root, which=which,
                 placements=np.stack([rows[0], inner, node, *rows[1:]]))


def distinct(rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """The distinct columns of some rows, in order, and the index of every column among them.

    Sorting one number for each column is faster than `numpy.unique` along an axis.
    """
    key, keys = np.zeros(len(rows[0]), np.int64), 1
    for row in rows:
        if not len(row) or not np.ptp(row):
            continue
        if row.dtype.kind == "f":
            row = np.unique(row, return_inverse=True)[1]
        least = row.min()
        width = int(row.max() - least) + 1
        if keys * width >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1]
            keys = int(key.max()) + 1
        key, keys = key * width + (row - least), keys * width
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return np.stack(rows)[:, first], np.ravel(index)


def _runs(network_model: NetworkModel, strides: IntArray, sizes: IntArray, p: IntArray
          ) -> tuple[IntArray, IntArray]:
    """Members of a group in each node, and ranks of a node.

    The nodes are the units of the innermost level that divides each group into equal runs of more
    than one member.
    """
    inner, node = np.ones_like(p), np.zeros_like(p)
    strides = np.maximum(strides, 1)  # 0 where there is no such coordinate
    for unit in network_model.inner[:0:-1].tolist():
        within = np.clip(unit // strides, 1, sizes)
        equal = ((unit % strides * (strides < unit) == 0) & (sizes % within == 0)).all(axis=0)
        members = within.prod(axis=0)
        runs = equal & (members > 1) & (members < p)
        inner, node = np.where(runs, members, inner), np.where(runs, unit, node)
    return inner, node
