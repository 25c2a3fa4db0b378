"""Many movements of families of plans priced in one go: the cases of all of them laid end to end.

The prices are those of `hpcpar.cost.traffic`, without its cost of some hundred calls of NumPy for every movement: what a search's tables
are made of are thousands of movements with a few hundred cases each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from hpcpar.cost.choose import allowed, offers
from hpcpar.cost.direct import Amounts, Spread, amounts, redistribution_s, spread
from hpcpar.cost.halos import halo_of, halo_s, neighbours, through_items
from hpcpar.cost.links import Route, Wires
from hpcpar.cost.memory import wire_buffer, wire_bytes
from hpcpar.cost.traffic import copied
from hpcpar.machine.model import Machine
from hpcpar.plan.config import Digit
from hpcpar.schedule.builder import Move
from hpcpar.schedule.pattern import KINDS
from hpcpar.schedule.steps import CODES, Kind

#: Cases of redistributions that are priced together: enough to make calls cheap, few enough for a processor's cache.
CASES = 16_384
_HALO, _REDISTRIBUTE = CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE]
_COLLECTIVE = np.array([kind not in (None, Kind.HALO, Kind.REDISTRIBUTE) for kind in KINDS])
_GATHERS = CODES[Kind.ALLGATHER]


@dataclass(eq=False)
class Bill:
    """The price of a movement.

    Attributes
    ----------
    shape : tuple of int
        Of its cases.
    seconds : ndarray
        For each case.
    """

    step: Move
    shape: tuple[int, ...]
    seconds: Any
    amounts: Amounts | None = None
    halo: tuple[Any, Any] | None = None

    @cached_property
    def through_bytes(self) -> Any:
        """What goes from rank to rank through the buffers of the rank with most of it; 0 in a collective."""
        out: Any = np.int64(0)
        if self.amounts is not None:
            moved = _whole_items(self.amounts.out, self.amounts.into)
            out = np.where(np.equal(self.step.pattern.code, _REDISTRIBUTE), moved, 0)
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
        if code == _REDISTRIBUTE and self.amounts is not None:
            moved = _whole_items(entry(self.amounts.out, at), entry(self.amounts.into, at)) * step.item_bytes
        elif code == _HALO:
            moved = entry(self.through_bytes, at)
        held, wanted = (entry(layout.largest_items, at) for layout in (step.holder, step.wanter))
        group = math.prod(int(entry(d.size, at)) for d in step.pattern.digits)
        return wire_buffer(code, group, held, wanted, step.item_bytes, moved)


class Bulk:
    """Prices movements of one job.

    Parameters
    ----------
    collectives : str
        As in a plan.
    chosen_on : Wires
        The links that decide a collective's algorithm.
    ranks : int
        Of the job.
    """

    def __init__(self, machine: Machine, wires: Wires, collectives: str, chosen_on: Wires, ranks: int) -> None:
        self.machine, self.wires, self.collectives, self.chosen_on, self.ranks = machine, wires, collectives, chosen_on, ranks

    def bills(self, steps: Sequence[tuple[Move, tuple[int, ...]]]) -> list[Bill]:
        """The prices of movements, each with the shape of its cases."""
        out, moving, halos, collectives = [], [], [], []
        for step, shape in steps:
            bill = Bill(step, shape, np.zeros(shape))
            out.append(bill)
            code = step.pattern.code
            counts = np.bincount(code.ravel(), minlength=len(KINDS))
            code = code if code.shape == shape else np.broadcast_to(code, shape)
            if counts[_REDISTRIBUTE]:
                bill.amounts = amounts(step.holder, step.wanter, self.ranks)
                moving.append((bill, bill.amounts))
            if counts[_HALO]:
                halos.append((bill, np.nonzero(code == _HALO)))
            if counts[_COLLECTIVE].any():
                collectives.append((bill, np.nonzero(_COLLECTIVE[code])))
        if moving:
            self._redistributions(moving)
        if halos:
            self._halos(halos)
        if collectives:
            self._collectives(collectives)
        return out

    # -- redistributions -------------------------------------------------------------------------------------------
    def _redistributions(self, bills: list[tuple[Bill, Amounts]]) -> None:
        grid = _Grid(bills, self.wires, self.ranks)
        batch: list[tuple[Bill, Amounts]] = []
        cases = 0
        for i, (bill, found) in enumerate(bills, 1):
            batch.append((bill, found))
            cases += bill.seconds.size
            if cases > CASES or i == len(bills):
                self._redistribute(batch, cases, grid)
                batch, cases = [], 0

    def _redistribute(self, bills: list[tuple[Bill, Amounts]], cases: int, grid: _Grid) -> None:
        lines, pairs = np.empty((6, cases)), np.empty((2, cases), np.intp)
        ends = [0, *itertools.accumulate(bill.seconds.size for bill, _ in bills)]
        for (bill, found), begin, end in zip(bills, ends, ends[1:], strict=False):
            step, shape = bill.step, bill.shape
            s_per_byte = self.machine.add_s_per_byte if np.any(step.pattern.reduce) else self.machine.copy_s_per_byte
            values = (found.out, found.out_count, found.into, found.into_count, step.item_bytes, s_per_byte)
            for line, value in zip(lines, values, strict=True):
                line[begin:end].reshape(shape)[...] = value
            for place, layout in zip(pairs, (step.holder, step.wanter), strict=True):
                place[begin:end].reshape(shape)[...] = grid.place(found.block, layout.config.ranks)
        out, out_count, into, into_count, size, handling = lines
        there = Amounts(out, out_count, into, into_count, None)
        seconds = redistribution_s(there, grid.at(pairs[0]), grid.at(pairs[1]), size, handling, self.machine)
        for (bill, _), begin, end in zip(bills, ends, ends[1:], strict=False):
            bill.seconds[...] = np.where(np.equal(bill.step.pattern.code, _REDISTRIBUTE), seconds[begin:end].reshape(bill.shape), 0.0)

    # -- halos -----------------------------------------------------------------------------------------------------
    def _halos(self, cases: list[tuple[Bill, Any]]) -> None:
        ends = np.cumsum([0, *(len(at[0]) for _, at in cases)])
        total = int(ends[-1])
        halos = []
        for bill, _ in cases:
            step = bill.step
            own, need = (step.wanter, step.holder) if np.any(step.pattern.reduce) else (step.holder, step.wanter)
            halos.append(halo_of(own, need))
        width = max(len(halo.digits) for halo in halos)
        # an axis that is not cut: one part, that keeps everything
        found = np.zeros((width, total, 3, 5), np.int64)
        found[..., 0] = 1
        digits = np.ones((width, 2, total), np.int64)
        rest, back, size = np.empty(total, np.int64), np.empty(total, bool), np.empty(total, np.int64)
        for (bill, at), halo, a, b in zip(cases, halos, ends, ends[1:], strict=False):
            rest[a:b] = entry(halo.rest, at)
            back[a:b], size[a:b] = np.any(bill.step.pattern.reduce), bill.step.item_bytes
            for i, (sides, digit) in enumerate(zip(halo.found, halo.digits, strict=True)):
                found[i, a:b] = entry(sides, at, 2)
                digits[i, 0, a:b], digits[i, 1, a:b] = entry(digit.stride, at), entry(digit.size, at)
        whole = type(halos[0])(rest, list(found), [Digit(*d) for d in digits])
        into, out, _ = neighbours(whole, size, self.wires, self.ranks)
        through = through_items(whole)
        swapped = [(np.where(back, y, x), np.where(back, x, y)) for x, y in zip(into, out, strict=True)]
        into, out = [x for x, _ in swapped], [y for _, y in swapped]
        seconds = halo_s(into, out, size, self.machine, back)
        for (bill, at), a, b in zip(cases, ends, ends[1:], strict=False):
            bill.seconds[at] = seconds[a:b]
            bill.halo = (at, through[a:b])

    # -- collectives -----------------------------------------------------------------------------------------------
    def _collectives(self, cases: list[tuple[Bill, Any]]) -> None:
        ends = np.cumsum([0, *(len(at[0]) for _, at in cases)])
        total = int(ends[-1])
        width = max(len(bill.step.pattern.digits) for bill, _ in cases)
        digits = np.ones((2, width, total), np.int64)
        code, n_bytes, ranks = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
        known: dict[Any, slice] = {}
        for (bill, at), a, b in zip(cases, ends, ends[1:], strict=False):
            step = bill.step
            code[a:b] = entry(step.pattern.code, at)
            held, wanted = entry(step.holder.largest_items, at), entry(step.wanter.largest_items, at)
            n_bytes[a:b] = np.where(code[a:b] == _GATHERS, wanted, held) * step.item_bytes
            # layers under the same configurations have the same groups
            key = (step.pattern.code.tobytes(), *map(id, step.pattern.digits)) if len(bill.shape) == 1 else a
            same = known.setdefault(key, slice(a, b))
            if same.start != a:
                ranks[a:b], digits[..., a:b] = ranks[same], digits[..., same]
                continue
            ranks[a:b] = entry(step.holder.config.ranks, at)
            for i, d in enumerate(step.pattern.digits):
                digits[0, i, a:b], digits[1, i, a:b] = entry(d.stride, at), entry(d.size, at)
        stride, size = digits
        many = size > 1
        p = size.prod(axis=0)
        block = np.where(many, stride * size, 1).max(axis=0)
        near = np.where(many, stride, ranks).min(axis=0)
        seconds = np.empty(total)
        for kind in KINDS:
            if kind is None or not _COLLECTIVE[CODES[kind]]:
                continue
            here = np.flatnonzero(code == CODES[kind])
            if len(here):
                lies = (ranks[here], p[here], near[here], block[here])
                seconds[here] = self._collective_s(kind, n_bytes[here], *(Route(w, *lies) for w in (self.wires, self.chosen_on)))
        for (bill, at), a, b in zip(cases, ends, ends[1:], strict=False):
            bill.seconds[at] = seconds[a:b]

    def _collective_s(self, kind: Kind, n_bytes: Any, way: Route, chosen_on: Route) -> Any:
        names, add = allowed(kind, self.collectives), self.machine.add_s_per_byte
        _, every = offers(kind, way.p, n_bytes, way, add, names)
        if chosen_on.wires is way.wires:
            best = reduce(np.minimum, every)
        else:
            _, plain = offers(kind, way.p, n_bytes, chosen_on, add, names)
            best = np.choose(np.argmin(np.stack(plain), axis=0), every)
        return copied(kind, best, n_bytes, self.machine, way)


def _whole_items(out: Any, into: Any) -> Any:
    """Items that go and come, each as a whole number."""
    return np.round(out).astype(np.int64) + np.round(into).astype(np.int64)


class _Grid:
    """The links of redistributions for every block and every number of active ranks that occur: few, whatever the number of cases."""

    def __init__(self, bills: list[tuple[Bill, Amounts]], wires: Wires, ranks: int) -> None:
        there = np.zeros(ranks + 1, bool)
        for bill, found in bills:
            there[found.block] = True
            for layout in (bill.step.holder, bill.step.wanter):
                there[layout.config.ranks] = True
        values = np.flatnonzero(there)
        self._place = np.cumsum(there) - 1
        self._width = len(values)
        self._whole = spread(np.repeat(values, len(values)), np.tile(values, len(values)), wires, ranks)

    def place(self, block: Any, active: Any) -> Any:
        """Where the links of a block and a number of active ranks stand."""
        return self._place[block] * self._width + self._place[active]

    def at(self, places: Any) -> Spread:
        """The links at some places."""
        return self._whole.at(places)


def entry(values: Any, at: tuple[Any, ...], more: int = 0) -> Any:
    """Entries of an array that is broadcast to the shape that `at` indexes; `more` axes follow."""
    shape = values.shape[: values.ndim - more] if isinstance(values, np.ndarray) else ()
    if not shape:
        return values
    return values[tuple(i if n > 1 else 0 for n, i in zip(shape, at[-len(shape):], strict=True))]
