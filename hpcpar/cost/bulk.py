"""Many movements of families of plans priced in one go: the cases of all of them laid end to end.

The prices are those of `hpcpar.cost.traffic`, without its cost of some hundred calls of NumPy for every movement: what a search's tables
are made of are thousands of movements with a few hundred cases each.
"""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np

from hpcpar.cost.choose import allowed, offers
from hpcpar.cost.direct import Amounts, Spread, redistribution_s, spread
from hpcpar.cost.freight import COLLECTIVE, REDISTRIBUTE, Collectives, Freight, Halos, Load
from hpcpar.cost.halos import halo_s, neighbours
from hpcpar.cost.links import Route, Wires
from hpcpar.cost.traffic import copied
from hpcpar.machine.model import Machine
from hpcpar.schedule.pattern import KINDS
from hpcpar.schedule.steps import CODES, Kind

#: Cases of redistributions that are priced together: enough to make calls cheap, few enough for a processor's cache.
CASES = 16_384


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

    def seconds(self, freight: Freight) -> list[Any]:
        """The seconds of every movement, for each of its cases."""
        out = [np.zeros(load.shape) for load in freight.loads]
        if freight.moving:
            self._redistributions([(freight.loads[i], out[i]) for i in freight.moving])
        priced = []
        if freight.halos is not None:
            priced.append((freight.halos.parts, self._halos(freight.halos)))
        if freight.collectives is not None:
            priced.append((freight.collectives.parts, self._collectives(freight.collectives)))
        for parts, seconds in priced:
            for i, begin, end, at in parts:
                out[i][at] = seconds[begin:end]
        return out

    # -- redistributions -------------------------------------------------------------------------------------------
    def _redistributions(self, loads: list[tuple[Load, Any]]) -> None:
        grid = _Grid([load for load, _ in loads], self.wires, self.ranks)
        batch: list[tuple[Load, Any]] = []
        cases = 0
        for i, (load, seconds) in enumerate(loads, 1):
            batch.append((load, seconds))
            cases += seconds.size
            if cases > CASES or i == len(loads):
                self._redistribute(batch, cases, grid)
                batch, cases = [], 0

    def _redistribute(self, loads: list[tuple[Load, Any]], cases: int, grid: _Grid) -> None:
        lines, pairs = np.empty((6, cases)), np.empty((2, cases), np.intp)
        ends = [0, *itertools.accumulate(out.size for _, out in loads)]
        for (load, _), begin, end in zip(loads, ends, ends[1:], strict=False):
            step, shape, found = load.step, load.shape, load.amounts
            assert found is not None
            s_per_byte = self.machine.add_s_per_byte if np.any(step.pattern.reduce) else self.machine.copy_s_per_byte
            values = (found.out, found.out_count, found.into, found.into_count, step.item_bytes, s_per_byte)
            for line, value in zip(lines, values, strict=True):
                line[begin:end].reshape(shape)[...] = value
            for place, layout in zip(pairs, (step.holder, step.wanter), strict=True):
                place[begin:end].reshape(shape)[...] = grid.place(found.block, layout.config.ranks)
        out, out_count, into, into_count, size, handling = lines
        there = Amounts(out, out_count, into, into_count, None)
        seconds = redistribution_s(there, grid.at(pairs[0]), grid.at(pairs[1]), size, handling, self.wires)
        for (load, found_s), begin, end in zip(loads, ends, ends[1:], strict=False):
            found_s[...] = np.where(np.equal(load.step.pattern.code, REDISTRIBUTE), seconds[begin:end].reshape(load.shape), 0.0)

    # -- halos -----------------------------------------------------------------------------------------------------
    def _halos(self, laid: Halos) -> Any:
        into, out, level = neighbours(laid.whole, laid.size, self.wires, self.ranks)
        swapped = [(np.where(laid.back, y, x), np.where(laid.back, x, y)) for x, y in zip(into, out, strict=True)]
        return halo_s([x for x, _ in swapped], [y for _, y in swapped], level, laid.size, self.wires, laid.back)

    # -- collectives -----------------------------------------------------------------------------------------------
    def _collectives(self, laid: Collectives) -> Any:
        seconds = np.empty(len(laid.code))
        for kind in KINDS:
            if kind is None or not COLLECTIVE[CODES[kind]]:
                continue
            here = np.flatnonzero(laid.code == CODES[kind])
            if len(here):
                lies = (laid.ranks[here], laid.p[here], laid.near[here], laid.block[here])
                seconds[here] = self._collective_s(kind, laid.n_bytes[here], *(Route(w, *lies) for w in (self.wires, self.chosen_on)))
        return seconds

    def _collective_s(self, kind: Kind, n_bytes: Any, way: Route, chosen_on: Route) -> Any:
        names, add = allowed(kind, self.collectives), self.machine.add_s_per_byte
        _, every = offers(kind, way.p, n_bytes, way, add, names)
        if chosen_on.wires is way.wires:
            best = reduce(np.minimum, every)
        else:
            _, plain = offers(kind, way.p, n_bytes, chosen_on, add, names)
            best = np.choose(np.argmin(np.stack(plain), axis=0), every)
        return copied(kind, best, n_bytes, self.machine, way)


class _Grid:
    """The links of redistributions for every block and every number of active ranks that occur: few, whatever the number of cases."""

    def __init__(self, loads: list[Load], wires: Wires, ranks: int) -> None:
        there = np.zeros(ranks + 1, bool)
        for load in loads:
            assert load.amounts is not None
            there[load.amounts.block] = True
            for layout in (load.step.holder, load.step.wanter):
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
