"""The links that messages cross, for every case of a family: latency and bandwidth of their level,
shared by the flows of the job.

Contention (ParaDL's phi): a unit of a level (a node, a rack) is attached to the level above by some
links; where more of the job's own flows leave it at the same time, each gets less. phi follows from
the placement: how many flows of the step leave a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.machine.model import Level, Machine
from hpcpar.plan.config import Digit, Ints
from hpcpar.schedule.steps import Kind


@dataclass(frozen=True)
class Links:
    """Hockney's model of a message, alpha + beta * bytes, with a number or an array in every field.
    """

    alpha_s: Any
    beta_s_per_byte: Any
    small_alpha_s: Any
    small_bytes: Any

    @classmethod
    def of(cls, level: Level) -> Links:
        """The links of one level, that nobody shares."""
        small = level.alpha_s if level.small_alpha_s is None else level.small_alpha_s
        return cls(level.alpha_s, level.beta_s_per_byte, small, level.small_bytes)

    def latency_s(self, message_bytes: Any) -> Any:
        """Latency of a message of this size."""
        if self.small_alpha_s is self.alpha_s:
            return self.alpha_s
        return np.where(np.less_equal(message_bytes, self.small_bytes), self.small_alpha_s,
                        self.alpha_s)

    def message_s(self, message_bytes: Any) -> Any:
        """Seconds of one message."""
        return self.latency_s(message_bytes) + self.beta_s_per_byte * message_bytes

    def factor(self, kind: Kind, algorithm: str, n_bytes: Any) -> Any:
        """Nothing is known of collectives."""
        return None

    # a single kind of link is a route of its own
    @property
    def far(self) -> Links:
        return self

    def hop(self, doubling: int) -> Links:
        return self


class Wires:
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

    def index(self, block: Any, ranks: Any) -> Any:
        """The level that groups within aligned blocks of so many ranks need."""
        return 0 if self.single is not None else self.machine.level_index_for(np.asarray(block), np.asarray(ranks))

    def between(self, first: Any, last: Any) -> Any:
        """The innermost level whose unit holds both ranks."""
        out: Any = len(self.inner) - 1
        for i in reversed(range(len(self.inner))):
            unit = self.machine.levels[i].ranks
            out = np.where(np.equal(first // unit, last // unit), i, out) if unit else i
        return np.asarray(out)

    def links(self, index: Any, flows: Callable[[Any], Any]) -> Links:
        """The links of messages that cross a level.

        On its way a message leaves a unit of every level but the innermost, through that unit's
        links: the slowest decide.

        Parameters
        ----------
        index : int
            The outermost level that is crossed.
        flows : callable
            From the ranks of a unit to the flows that leave it at the same time.
        """
        beta: Any = self._beta[0] * self._phi(0, flows)
        path: Any = 0.0
        for level in range(1, len(self.shared)):
            path = np.maximum(path, self._beta[level] * self._phi(level, flows))
            beta = np.where(np.equal(index, level), path, beta)
        alpha = self._alpha[index]
        small = alpha if self.plain else self._small[index]
        return Links(alpha, beta, small, self._bytes[index])

    def factor(self, index: Any, kind: Kind, algorithm: str, n_bytes: Any) -> Any:
        """How many times as long a collective of a buffer, or a direct movement, takes on a level
        as alpha and beta say; else 1.
        """
        out: Any = 1.0
        for known in self.machine.collectives:
            if (known.kind, known.algorithm) == (kind.value, algorithm):
                here = np.equal(index,
                                self._names.index(
                    known.level)) if known.level in self._names else False
                there = np.interp(np.log(np.maximum(n_bytes, 1)), np.log(known.bytes),
                                  known.factors)
                out = np.where(here, there, out)
        return out

    def _phi(self, level: int, flows: Callable[[Any], Any]) -> Any:
        """Contention of a level."""
        if self.contention is not None:
            return self.contention if level else 1.0
        return 1.0 if np.isinf(self.shared[level]) else np.maximum(1.0, flows(self.inner[level]) / self.shared[level])


@dataclass(frozen=True)
class Route:
    """How a collective's groups lie on the machine.

    Attributes
    ----------
    p, stride, block : int or array
        Members; their smallest distance; ranks of the aligned block that a group spans.
    """

    wires: Wires
    ranks: Ints
    p: Any
    stride: Any
    block: Any

    def at(self, cases: tuple[Any, ...], shape: tuple[int, ...]) -> Route:
        """The route in some cases, by their indices in an array of a shape."""
        lies = (np.broadcast_to(value, shape)[cases]
                for value in (self.ranks, self.p, self.stride, self.block))
        return Route(self.wires, *lies)

    @cached_property
    def level(self) -> Any:
        """Index of the level that the groups cross."""
        return self.wires.index(self.block, self.ranks)

    @cached_property
    def far(self) -> Links:
        """The links that a ring's slowest neighbours share: from each unit, one flow for each group
        that reaches into it.
        """
        return self.wires.alone or self.wires.links(self.level, self._rings)

    def _rings(self, unit: Any) -> Any:
        """Groups that reach into a unit: each sends one flow out of it."""
        unit = np.minimum(unit, self.ranks)
        return unit / np.clip(unit // self.stride, 1, self.p)

    def hop(self, doubling: int) -> Links:
        """The links that partners at distance 2^doubling share: every rank of a unit sends at once.
        """
        if doubling not in self._hops:
            self._hops[doubling] = self.wires.alone or self._hop(doubling)
        return self._hops[doubling]

    def factor(self, kind: Kind, algorithm: str, n_bytes: Any) -> Any:
        """How many times as long a collective takes as alpha and beta say; None where nothing is
        known.
        """
        return self.wires.factor(self.level, kind, algorithm,
                                 n_bytes) if self.wires.machine.collectives else None

    @cached_property
    def _hops(self) -> dict[int, Links]:
        return {}

    def _hop(self, doubling: int) -> Links:
        reach = np.minimum(self.block, self.stride * (2 << doubling))
        return self.wires.links(self.wires.index(reach, self.ranks),
                                lambda unit: np.minimum(unit, self.ranks))


def route(wires: Wires, digits: Sequence[Digit], ranks: Ints) -> Route:
    """The route of groups whose members differ in `digits`."""
    p: Any = 1
    block: Any = 1
    stride: Any = None
    for d in digits:
        counts = np.greater(d.size, 1)
        p = p * d.size
        block = np.maximum(block, np.where(counts, d.stride * d.size, 1))
        near = np.where(counts, d.stride, ranks)
        stride = near if stride is None else np.minimum(stride, near)
    return Route(wires, ranks, p, 1 if stride is None else stride, block)


def doublings(p: Any) -> int:
    """ceil(log2) of the largest p."""
    return math.ceil(math.log2(max(1, int(np.max(p)))))
