"""Many movements of families of plans laid end to end, ready to be priced together: whole numbers,
the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.memory.memory import wire_buffer
from hpcpar.cost.network.halo import through_items
from hpcpar.cost.network.paired import amounts
from hpcpar.cost.network.sides import Halo
from hpcpar.plan.config import Digit
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.pattern import COLLECTIVE, Pattern
from hpcpar.schedule.steps import CODES, Kind

HALO, REDISTRIBUTE = CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE]
_GATHERS = CODES[Kind.ALLGATHER]


class Moved(NamedTuple):
    """Redistributions.

    Attributes
    ----------
    sums : array
        [items sent, messages, items received, messages; tensors, cases]: see
        `hpcpar.cost.network.common.moved`.
    span : array of int
        Of each case the aligned ranks among which it stays.
    lives : tuple of array of int
        The ranks that hold the tensors, and that want them; of the same shape as `span`, or to be
        broadcast to it.
    """

    sums: Any
    span: Any
    lives: tuple[Any, Any]


@dataclass(eq=False)
class Load:
    """What of the movements of some tensors decides their prices and their buffers: all under the
    same configurations, in the same way.

    Attributes
    ----------
    tensors : int
    pattern : Pattern
        With an entry for each case.
    lives : array of int
        Ranks that hold the tensors, of each collective.
    items : array of int
        [tensors, collectives]: of the largest boxes that decide the price.
    moved : Moved or None
        Of all cases, where some are redistributions.
    halo : Halo or None
        What the cases move that are halos, those of one tensor after those of the other.
    """

    tensors: int
    pattern: Pattern
    item_bytes: int
    lives: Any
    items: Any
    moved: Moved | None = None
    halo: Halo | None = None

    @classmethod
    def of(cls, step: Move, ranks: int) -> Load:
        """The load of a layer's own movement, which is never a halo."""
        at, code = step.pattern.at, step.pattern.code
        items = sent_items(code[at], _some(step.holder.largest_items, at),
                           _some(step.wanter.largest_items, at))[None]
        load = cls(1, step.pattern, step.item_bytes, _some(step.holder.config.ranks, at), items)
        if (code == REDISTRIBUTE).any():
            found = amounts(step.holder, step.wanter, ranks)
            sums = np.stack(np.broadcast_arrays(found.out, found.out_count, found.into,
                                                found.into_count))[:, None]
            lives = (step.holder.config.ranks, step.wanter.config.ranks)
            load.moved = Moved(sums, np.broadcast_to(found.block, load.cases), lives)
        return load

    @property
    def cases(self) -> int:
        return len(self.pattern.code)

    @cached_property
    def halos(self) -> Any:
        """The cases that are halos."""
        return (self.pattern.code == HALO).nonzero()[0]

    @cached_property
    def _halo_items(self) -> Any:
        """[tensors, halos]: items that go through the buffers of the rank with most of them."""
        assert self.halo is not None
        return through_items(self.halo).reshape(self.tensors, -1)

    def wire_bytes(self, held: Any, wanted: Any, tensor: int = 0, at: int | None = None) -> Any:
        """The wire buffer of a tensor, of all cases or of one.

        Parameters
        ----------
        held, wanted : int
            Items of its largest boxes before and after.
        """
        through, group = (self._all(tensor) if at is None else self._one(tensor, at))
        code = self.pattern.code if at is None else self.pattern.code[at]
        return wire_buffer(code, group, held, wanted, self.item_bytes, through * self.item_bytes)

    def _all(self, tensor: int) -> tuple[Any, Any]:
        """Items that go through the buffers of the rank with most of them, of no collective, and
        the ranks of a collective.
        """
        through, group = np.zeros(self.cases, np.int64), np.ones(self.cases, np.int64)
        if self.moved is not None:
            np.copyto(through, _both(self.moved.sums[:, tensor]),
                      where=self.pattern.code == REDISTRIBUTE)
        if self.halo is not None:
            through[self.halos] = self._halo_items[tensor]
        group[self.pattern.at] = self.pattern.among.size.prod(axis=0)
        return through, group

    def _one(self, tensor: int, at: int) -> tuple[Any, Any]:
        """The same of one case."""
        code = self.pattern.code[at]
        if COLLECTIVE[code]:
            return 0, self.pattern.among.size[:, self.pattern.at.searchsorted(at)].prod()
        if code == HALO:
            return self._halo_items[tensor, self.halos.searchsorted(at)], 1
        return _both(self.moved.sums[:, tensor, at]) if code and self.moved is not None else 0, 1


def _both(sums: Any) -> Any:
    """Items sent and received."""
    return sums[0].round().astype(np.int64) + sums[2].round().astype(np.int64)


def sent_items(code: Any, held: Any, wanted: Any) -> Any:
    """Items of the largest boxes that decide a collective's price: those before and after are
    `held` and `wanted`.
    """
    return np.where(code == _GATHERS, wanted, held)


def _some(values: Any, at: Any) -> Any:
    """Of some cases; a number is of all."""
    return values[at] if isinstance(values, np.ndarray) and values.ndim else values


class Part(NamedTuple):
    """Cases of a movement: its place among the loads, where its cases begin and end, and their
    indices, the same of each tensor.
    """

    load: int
    begin: int
    end: int
    at: Any


@dataclass(frozen=True)
class Halos:
    """Halos laid end to end; `back` marks the adjoints."""

    parts: list[Part]
    whole: Halo
    size: Any
    back: Any


@dataclass(frozen=True)
class Collectives:
    """Collectives laid end to end: code, bytes, members, their smallest distance, the ranks that a
    group spans, those of the layer.
    """

    parts: list[Part]
    code: Any
    n_bytes: Any
    p: Any
    near: Any
    block: Any
    ranks: Any


@dataclass(frozen=True)
class Freight:
    """Movements laid end to end.

    Attributes
    ----------
    moving : list of (int, array of int)
        The places of loads with redistributions; and for each of their cases the places of both
        ends' links in `spans`.
    spans : tuple of (block, active)
        For each of the links of redistributions the aligned ranks among which they lie, and the
        ranks that use them at once: few, whatever the number of cases.
    """

    loads: list[Load]
    moving: list[tuple[int, Any]]
    spans: tuple[Any, Any]
    halos: Halos | None
    collectives: Collectives | None


def freight(loads: list[Load], ranks: int) -> Freight:
    """Movements laid end to end."""
    halos, collectives = list[Part](), list[Part]()
    for i, load in enumerate(loads):
        found = [(collectives, load.pattern.at)]
        if load.halo is not None:
            found.append((halos, load.halos))
        for parts, at in found:
            if len(at):
                begin = parts[-1].end if parts else 0
                parts.append(Part(i, begin, begin + load.tensors * len(at), at))
    return Freight(
        loads, *_spans(loads, ranks), _halos(loads, halos) if halos else None, _collectives(loads, collectives) if collectives else None,
    )


def _spans(loads: list[Load], ranks: int) -> tuple[list[tuple[int, Any]], tuple[Any, Any]]:
    there = np.zeros(ranks + 1, bool)
    moving = [(i, load.moved) for i, load in enumerate(loads) if load.moved is not None]
    for _, moved in moving:
        for values in (moved.span, *moved.lives):
            there[values] = True
    values, place = there.nonzero()[0], np.cumsum(there, dtype=np.int32) - 1
    out = []
    for i, moved in moving:
        span, both = place[moved.span] * len(values), np.empty((2, *moved.span.shape), np.int32)
        for links, lives in zip(both, moved.lives, strict=True):
            np.add(span, place[lives], out=links)
        out.append((i, both.reshape(2, -1)))
    return out, (np.repeat(values, len(values)), np.tile(values, len(values)))


def _halos(loads: list[Load], parts: list[Part]) -> Halos:
    total = parts[-1].end
    halos = [loads[part.load].halo or Halo(1, [], []) for part in parts]
    width = max(len(halo.digits) for halo in halos)
    # an axis that is not cut: one part, that keeps everything
    found = np.zeros((width, total, 3, 5), np.int64)
    found[..., 0] = 1
    digits = np.ones((width, 2, total), np.int64)
    rest, back, size = np.empty(total, np.int64), np.empty(total, bool), np.empty(total, np.int64)
    for (i, a, b, _), halo in zip(parts, halos, strict=True):
        rest[a:b], back[a:b], size[a:b] = halo.rest, loads[i].pattern.adds, loads[i].item_bytes
        for axis, (sides, digit) in enumerate(zip(halo.found, halo.digits, strict=True)):
            found[axis, a:b], digits[axis, 0, a:b], digits[axis, 1,
                                                           a:b] = sides, digit.stride, digit.size
    return Halos(parts, Halo(rest, list(found), [Digit(*d) for d in digits]), size, back)


def _collectives(loads: list[Load], parts: list[Part]) -> Collectives:
    total, width = parts[-1].end, max(len(loads[part.load].pattern.among.size) for part in parts)
    code, n_bytes, ranks = np.empty((3, total), np.int64)
    stride, size = np.ones((2, width, total), np.int64)
    for i, a, b, at in parts:
        load = loads[i]
        digits, shape = load.pattern.among, (load.tensors, len(at))
        code[a:b].reshape(shape)[...], ranks[a:b].reshape(shape)[...] = load.pattern.code[
            at], load.lives
        np.multiply(load.items, load.item_bytes, out=n_bytes[a:b].reshape(shape))
        for line, value in ((stride, digits.stride), (size, digits.size)):
            line[: len(value), a:b].reshape(-1, *shape)[...] = value[:, None]
    many = size > 1
    near, block = np.where(many, stride, ranks).min(axis=0), np.where(many, stride * size, 1).max(axis=0)
    return Collectives(parts, code, n_bytes, size.prod(axis=0), near, block, ranks)
