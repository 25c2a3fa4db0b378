"""Many movements of families of plans priced in one go: the cases of all of them laid end to end.

The prices are those of `hpcpar.cost.network.transfer`, without its cost of some hundred calls of
NumPy for every movement: what a search's tables are made of are thousands of movements with a few
hundred cases each.
"""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.network.algorithm_choice import allowed, offers
from hpcpar.cost.network.contention import Route, Wires
from hpcpar.cost.network.freight import REDISTRIBUTE, Collectives, Freight, Halos, Load
from hpcpar.cost.network.halo import halo_s, neighbours
from hpcpar.cost.network.paired import Amounts
from hpcpar.cost.network.redistribution import Spread, redistribution_s, spread
from hpcpar.cost.network.transfer import copied
from hpcpar.machine.model import Machine
from hpcpar.schedule.pattern import COLLECTIVE, KINDS
from hpcpar.schedule.steps import CODES, Kind

#: Cases of redistributions that are priced together: enough to make calls cheap, few enough for a
#: processor's cache.
CASES = 4096


class _Some(NamedTuple):
    """Some tensors and cases of a load, with the places of both ends' links for each of its cases.
    """

    load: int
    links: Any
    tensors: slice
    cases: slice

    @property
    def size(self) -> int:
        return (self.tensors.stop - self.tensors.start) * (self.cases.stop - self.cases.start)


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

    def __init__(self, machine: Machine, wires: Wires, collectives: str, chosen_on: Wires,
                 ranks: int) -> None:
        self.machine, self.wires, self.collectives, self.chosen_on, self.ranks = machine, wires, collectives, chosen_on, ranks

    def seconds(self, freight: Freight) -> list[Any]:
        """The seconds of every movement, [tensors, cases]."""
        out = [np.zeros((load.tensors, load.cases)) for load in freight.loads]
        if freight.moving:
            self._redistributions(freight, out)
        priced = []
        if freight.halos is not None:
            priced.append((freight.halos.parts, self._halos(freight.halos)))
        if freight.collectives is not None:
            priced.append((freight.collectives.parts, self._collectives(freight.collectives)))
        for parts, seconds in priced:
            for i, begin, end, at in parts:
                out[i][:, at] = seconds[begin:end].reshape(-1, len(at))
        return out

    # -- redistributions ---------------------------------------------------------------------------
    def _redistributions(self, freight: Freight, out: list[Any]) -> None:
        links = spread(*freight.spans, self.wires, self.ranks)
        batch = list[_Some]()
        room, lines, places = CASES, np.empty((6, CASES)), np.empty((2, CASES), np.intp)
        for i, both in freight.moving:
            tensors, cases = out[i].shape
            step = max(1, CASES // cases)
            for tensor in range(0, tensors, step):
                for begin in range(0, cases, CASES):
                    some = _Some(i, both, slice(tensor, min(tensor + step, tensors)),
                                 slice(begin, min(begin + CASES, cases)))
                    if some.size > room:
                        self._redistribute(freight.loads, batch, links, out, lines, places)
                        batch, room = [], CASES
                    batch.append(some)
                    room -= some.size
        self._redistribute(freight.loads, batch, links, out, lines, places)

    def _redistribute(self, loads: list[Load], batch: list[_Some], links: Spread, out: list[Any],
                      lines: Any, places: Any) -> None:
        ends = [0, *itertools.accumulate(some.size for some in batch)]
        for (i, both, tensors, cases), begin, end in zip(batch, ends, ends[1:], strict=False):
            load = loads[i]
            assert load.moved is not None
            found = load.moved.sums[:, tensors, cases]
            lines[:4, begin:end].reshape(found.shape)[...] = found
            lines[4, begin:end] = load.item_bytes
            lines[5, begin:end] = self.machine.add_s_per_byte if load.pattern.adds else self.machine.copy_s_per_byte
            places[:, begin:end].reshape(2, *found.shape[1:])[...] = both[:, None, cases]
        sent, sent_count, into, into_count, size, handling = lines[:, : ends[-1]]
        there = Amounts(sent, sent_count, into, into_count, None)
        sending, receiving = (links.at(each[: ends[-1]]) for each in places)
        seconds = redistribution_s(there, sending, receiving, size, handling, self.wires)
        for (i, _, tensors, cases), begin, end in zip(batch, ends, ends[1:], strict=False):
            here = out[i][tensors, cases]
            np.copyto(here, seconds[begin:end].reshape(here.shape),
                      where=loads[i].pattern.code[cases] == REDISTRIBUTE)

    # -- halos -------------------------------------------------------------------------------------
    def _halos(self, laid: Halos) -> Any:
        into, out, level = neighbours(laid.whole, laid.size, self.wires, self.ranks)
        swapped = [(np.where(laid.back, y, x), np.where(laid.back, x, y))
                   for x, y in zip(into, out, strict=True)]
        return halo_s([x for x, _ in swapped], [y for _, y in swapped], level, laid.size,
                      self.wires, laid.back)

    # -- collectives -------------------------------------------------------------------------------
    def _collectives(self, laid: Collectives) -> Any:
        seconds = np.empty(len(laid.code))
        for kind in KINDS:
            if kind is None or not COLLECTIVE[CODES[kind]]:
                continue
            here = (laid.code == CODES[kind]).nonzero()[0]
            if len(here):
                lies = (laid.ranks[here], laid.p[here], laid.near[here], laid.block[here])
                seconds[here] = self._collective_s(kind, laid.n_bytes[here],
                                                   *(Route(w, *lies)
                                                     for w in (self.wires, self.chosen_on)))
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
