"""Many movements of families of plans laid end to end, ready to be priced together: whole numbers, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.cost.direct import Amounts, amounts
from hpcpar.cost.halos import Halo, halo_of, through_items
from hpcpar.cost.memory import wire_buffer, wire_bytes
from hpcpar.cost.slots import all_along
from hpcpar.plan.axis import entry
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout
from hpcpar.schedule.parts import Move
from hpcpar.schedule.pattern import KINDS
from hpcpar.schedule.steps import CODES, Kind

HALO, REDISTRIBUTE = CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE]
#: Of each code, whether it is a collective's.
COLLECTIVE = np.array([kind not in (None, Kind.HALO, Kind.REDISTRIBUTE) for kind in KINDS])
_GATHERS = CODES[Kind.ALLGATHER]


@dataclass(eq=False)
class Load:
    """A movement, and what of it goes from rank to rank.

    Attributes
    ----------
    shape : tuple of int
        Of its cases.
    halo : tuple or None
        Cases that are halos, and the items that go through the buffers of the rank with most of them.
    """

    step: Move
    shape: tuple[int, ...]
    amounts: Amounts | None = None
    halo: tuple[Any, Any] | None = None

    @cached_property
    def through_bytes(self) -> Any:
        """What goes from rank to rank through the buffers of the rank with most of it; 0 in a collective."""
        out: Any = np.int64(0)
        if self.amounts is not None:
            moved = _whole_items(self.amounts.out, self.amounts.into)
            out = np.where(np.equal(self.step.pattern.code, REDISTRIBUTE), moved, 0)
        if self.halo is not None:
            out = np.array(np.broadcast_to(out, self.shape))
            out[self.halo[0]] = self.halo[1]
        return out * self.step.item_bytes

    def wire_bytes(self, at: tuple[int, ...] | None = None) -> Any:
        """The wire buffer, of all cases or of one."""
        step = self.step
        if at is None:
            return wire_bytes(step, {step.key: (0, self.through_bytes)})
        code = entry(step.pattern.code, at)
        if not code:
            return 0
        moved: Any = 0
        if code == REDISTRIBUTE and self.amounts is not None:
            moved = _whole_items(entry(self.amounts.out, at), entry(self.amounts.into, at)) * step.item_bytes
        elif code == HALO:
            moved = entry(self.through_bytes, at)
        held, wanted = (entry(layout.largest_items, at) for layout in (step.holder, step.wanter))
        group = math.prod(int(entry(d.size, at)) for d in step.pattern.digits)
        return wire_buffer(code, group, held, wanted, step.item_bytes, moved)


#: Cases of a movement: its place among the loads, where its cases begin and end, and their indices.
Part = tuple[int, int, int, tuple[Any, ...]]


@dataclass(frozen=True)
class Halos:
    """Halos laid end to end; `back` marks the adjoints."""

    parts: list[Part]
    whole: Halo
    size: Any
    back: Any


@dataclass(frozen=True)
class Collectives:
    """Collectives laid end to end: code, bytes, members, their smallest distance, the ranks that a group spans, those of the layer."""

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
    moving : list of int
        The loads of which some cases are redistributions.
    """

    loads: list[Load]
    moving: list[int]
    halos: Halos | None
    collectives: Collectives | None


def freight(steps: Sequence[tuple[Move, tuple[int, ...]]], ranks: int) -> Freight:
    """Movements, each with the shape of its cases, laid end to end."""
    loads = [Load(step, shape) for step, shape in steps]
    moving: list[int] = []
    halos: list[Part] = []
    collectives: list[Part] = []
    known: dict[Any, tuple[bool, _Indices, _Indices]] = {}
    for i, load in enumerate(loads):
        pattern = load.step.pattern
        key = (id(pattern), load.shape)
        if key not in known:
            known[key] = _cases(pattern.code, load.shape)
        redistributes, *found = known[key]
        if redistributes:
            moving.append(i)
        for parts, at in zip((halos, collectives), found, strict=True):
            if at is not None:
                begin = parts[-1][2] if parts else 0
                parts.append((i, begin, begin + len(at[0]), at))
    _amounts([loads[i] for i in moving], ranks)
    return Freight(loads, moving, _halos(loads, halos) if halos else None, _collectives(loads, collectives) if collectives else None)


def _amounts(loads: list[Load], ranks: int) -> None:
    """What redistributions move; there and back at once."""
    pairs: dict[Any, tuple[Layout, Layout]] = {}
    for load in loads:
        pair = (load.step.holder, load.step.wanter)
        pairs.setdefault(frozenset(map(id, pair)), pair)
    for pair, known in zip(pairs.values(), all_along(list(pairs.values()), ranks), strict=True):
        amounts(*pair, ranks, known)
    for load in loads:
        load.amounts = amounts(load.step.holder, load.step.wanter, ranks)


_Indices = tuple[Any, ...] | None


def _cases(code: Any, shape: tuple[int, ...]) -> tuple[bool, _Indices, _Indices]:
    """Whether some cases are redistributions, which ones are halos, and which are collectives."""
    counts = np.bincount(code.ravel(), minlength=len(KINDS))
    whole = code if code.shape == shape else np.broadcast_to(code, shape)
    return (bool(counts[REDISTRIBUTE]), np.nonzero(whole == HALO) if counts[HALO] else None,
            np.nonzero(COLLECTIVE[whole]) if counts[COLLECTIVE].any() else None)


def _halos(loads: list[Load], parts: list[Part]) -> Halos:
    total = parts[-1][2]
    halos = []
    for i, *_ in parts:
        step = loads[i].step
        own, need = (step.wanter, step.holder) if np.any(step.pattern.reduce) else (step.holder, step.wanter)
        halos.append(halo_of(own, need))
    width = max(len(halo.digits) for halo in halos)
    # an axis that is not cut: one part, that keeps everything
    found = np.zeros((width, total, 3, 5), np.int64)
    found[..., 0] = 1
    digits = np.ones((width, 2, total), np.int64)
    rest, back, size = np.empty(total, np.int64), np.empty(total, bool), np.empty(total, np.int64)
    for (i, a, b, at), halo in zip(parts, halos, strict=True):
        step = loads[i].step
        rest[a:b] = entry(halo.rest, at)
        back[a:b], size[a:b] = np.any(step.pattern.reduce), step.item_bytes
        for axis, (sides, digit) in enumerate(zip(halo.found, halo.digits, strict=True)):
            found[axis, a:b] = entry(sides, at, 2)
            digits[axis, 0, a:b], digits[axis, 1, a:b] = entry(digit.stride, at), entry(digit.size, at)
    whole = Halo(rest, list(found), [Digit(*d) for d in digits])
    through = through_items(whole)
    for i, a, b, at in parts:
        loads[i].halo = (at, through[a:b])
    return Halos(parts, whole, size, back)


def _collectives(loads: list[Load], parts: list[Part]) -> Collectives:
    total = parts[-1][2]
    width = max(len(loads[i].step.pattern.digits) for i, *_ in parts)
    digits = np.ones((2, width, total), np.int64)
    code, n_bytes, ranks = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    known: dict[Any, slice] = {}
    for i, a, b, at in parts:
        step = loads[i].step
        code[a:b] = entry(step.pattern.code, at)
        held, wanted = entry(step.holder.largest_items, at), entry(step.wanter.largest_items, at)
        n_bytes[a:b] = np.where(code[a:b] == _GATHERS, wanted, held) * step.item_bytes
        # layers under the same configurations have the same groups
        key = (id(step.pattern), loads[i].shape)
        same = known.setdefault(key, slice(a, b))
        if same.start != a:
            ranks[a:b], digits[..., a:b] = ranks[same], digits[..., same]
            continue
        ranks[a:b] = entry(step.holder.config.ranks, at)
        for j, d in enumerate(step.pattern.digits):
            digits[0, j, a:b], digits[1, j, a:b] = entry(d.stride, at), entry(d.size, at)
    stride, size = digits
    many = size > 1
    block = np.where(many, stride * size, 1).max(axis=0)
    near = np.where(many, stride, ranks).min(axis=0)
    return Collectives(parts, code, n_bytes, size.prod(axis=0), near, block, ranks)


def _whole_items(out: Any, into: Any) -> Any:
    """Items that go and come, each as a whole number."""
    return np.round(out).astype(np.int64) + np.round(into).astype(np.int64)
