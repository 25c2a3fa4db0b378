"""The layer-wise search of OptCNN and DeePa: for every layer the configuration that minimises the
iteration, provably (OptCNN, Eq 1).

Tables are made for the configurations that an optimal plan may have: of a first, small search
follows an upper bound U, and a configuration that even with the best of everything else costs more
than U cannot be in an optimal plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.cost.price_plan import price
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.search.approximate_elimination import solve_any
from hpcpar.search.cost_tables import TableMaker
from hpcpar.search.eliminate import Eliminations, count
from hpcpar.search.memory_limit import solve_within
from hpcpar.search.space import Spaces
from hpcpar.search.tables import Link, Table, Tables, configured, layer_edges, units

#: Configurations of a layer for which tables are made without looking for a bound first.
FEW = 128
#: Configurations of a layer in the first, small search.
FIRST = 10
#: Parts of the sums of gradients that may count as hidden: eighths.
HIDDEN = tuple(i / 8 for i in range(9))
#: Bisections of the price of memory.
BISECTIONS = 24
#: Parts of what a sum is larger than what is alive at once by, with which it is limited in turn.
RELAXED = (1.0, 0.8, 0.5, 0.0)


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes
    ----------
    plan : Plan
    objective_s : float
        OptCNN's Eq 1: the plain sum of computing and communication of an iteration.
    bytes : float
        What the arrays of the largest rank take, if each has a place of its own: a bound of what it
        needs at once.
    exact : bool
        The optimum of the space; False where memory was limiting, or the graph too entangled, and a
        gap to the bound is left.
    bound_s : float
        No plan of the space that fits is faster than this.
    """

    plan: Plan
    objective_s: float
    bytes: float
    exact: bool
    bound_s: float
    eliminations: Eliminations
    configurations: int
    kept: int
    table_s: float
    search_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        e = self.eliminations
        return {"objective_s": self.objective_s, "bound_s": self.bound_s, "exact": self.exact, "configurations": self.configurations,
                "kept_configurations": self.kept, "node_eliminations": e.nodes, "edge_eliminations": e.edges, "K": e.kept,
                "table_s": self.table_s, "search_s": self.search_s}


class Search:
    """The tables of a network on a number of ranks, and plans from them.

    Parameters
    ----------
    contention, gamma : float
        As in `hpcpar.cost.price_family.price_family`.
    options
        Those of `Plan`.
    """

    def __init__(
        self, network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
        contention: float | None = None, gamma: float = 1.0, **options: Any,
    ) -> None:
        begin = time.perf_counter()
        self.network, self.machine = network, machine
        self.pricing: dict[str, Any] = {"contention": contention, "gamma": gamma}
        self.plan = Plan(spec, ranks, batch, "layerwise", {}, machine=files.to_dict(machine),
                         **options)
        self.maker = TableMaker(network, self.plan, machine, contention, gamma)
        self.units = units(network,
                           Spaces(network, ranks, batch, machine,
                                  reductions=self.plan.synchronisation == "allreduce"))
        self.links = layer_edges(network, self.units)
        self.eliminations = count(len(network.layers), _pairs(network))
        self.configurations = sum(len(u.space) for u in self.units)
        if max(len(u.space) for u in self.units) <= FEW and not machine.compute:
            # everything is wanted, and cheapest all at once
            self.chosen = _shared([np.arange(len(u.space)) for u in self.units])
            self.nodes, edges = self.maker.tables(self.units, self._links(self.chosen))
            self.tables = self._joined(self.nodes, self.chosen, edges)
        else:
            self.nodes, _ = self.maker.tables(self.units, ())
            self.chosen = self._promising(self.nodes)
            self.tables = self._tables(self.nodes, self.chosen)
        self.table_s = time.perf_counter() - begin

    # -- tables ------------------------------------------------------------------------------------
    def _promising(self, nodes: list[Table]) -> list[Any]:
        """The configurations of each unit that an optimal plan may have."""
        everything = self._everything
        if max(map(len, everything)) <= FEW:
            return everything
        chosen = [rows[_first(u.space.degrees[rows], t.seconds[rows])]
                  for rows, u, t in zip(everything, self.units, nodes, strict=True)]
        first = self._tables(nodes, _shared(chosen))
        keep = [np.zeros(len(u.space), bool) for u in self.units]
        for hidden in HIDDEN:
            few = _hiding(first, hidden)
            bound = few.price(_solve(few)[1])
            seconds = [(t.seconds - hidden * t.hideable)[rows] for rows, t in zip(everything, nodes, strict=True)]
            slack = bound * (1 + 1e-12) - sum(float(x.min()) for x in seconds)
            for kept, rows, x in zip(keep, everything, seconds, strict=True):
                kept[rows[x <= x.min() + slack]] = True
        return _shared([np.flatnonzero(kept) for kept in keep])

    @cached_property
    def _everything(self) -> list[Any]:
        """All configurations of each unit; on a calibrated machine, those that were measured, where
        any was.

        A roofline's time beside measured ones of other configurations would decide by how the two
        differ.
        """
        rows = []
        for unit, table in zip(self.units, self.nodes, strict=True):
            measured = np.flatnonzero(np.broadcast_to(table.measured, len(unit.space)))
            rows.append(measured if self.machine.compute and len(measured)
                        else np.arange(len(unit.space)))
        return _shared(rows)

    @cached_property
    def _whole(self) -> Tables:
        """Tables of all configurations: where memory is limiting, what is slow may be what fits."""
        same = all(len(a) == len(b) for a, b in zip(self.chosen, self._everything, strict=True))
        return self.tables if same else self._tables(self.nodes, self._everything)

    def around(self, rows: Sequence[int]) -> tuple[Tables, list[Any], list[int]] | None:
        """Tables with a configuration of each unit in them, whose they are, and its places there.

        None where one is in no table: on a calibrated machine, one that was not measured.
        """
        for some in (self.chosen, self._everything):
            places = [np.flatnonzero(kept == row) for kept, row in zip(some, rows, strict=True)]
            if all(map(len, places)):
                return self.tables if some is self.chosen else self._whole, some, [int(place[0]) for place in places]
        return None

    def _tables(self, nodes: list[Table], chosen: list[Any]) -> Tables:
        return self._joined(nodes, chosen, self.maker.tables((), self._links(chosen))[1])

    def _links(self, chosen: list[Any]) -> list[Link]:
        return [Link(self.units[a], self.units[b], layer, which, chosen[a], chosen[b])
                for a, b, layer, which in self.links]

    def _joined(self, nodes: list[Table], chosen: list[Any], edges: list[Table]) -> Tables:
        out = Tables(self.units, _same([t.at(rows) for t, rows in zip(nodes, chosen, strict=True)],
                                       nodes, chosen))
        for (a, b, _, _), table in zip(self.links, edges, strict=True):
            out.edges[a, b] = out.edges[a, b] + table if (a, b) in out.edges else table
        return out

    # -- plans -------------------------------------------------------------------------------------
    def best(self, limit_bytes: float | None = None, hidden: float = 0.0) -> Found:
        """The fastest plan that fits the device; where none does, the smallest.

        Parameters
        ----------
        limit_bytes : float, optional
            A limit of what all arrays take if each has a place of its own, as the tables add up,
            instead of the device's memory.
        hidden : float
            Part of the sums of gradients that counts as hidden behind backpropagation, one of
            `HIDDEN`; 0 is the papers' objective.
        """
        begin = time.perf_counter()
        limit = self.machine.device.memory_bytes if limit_bytes is None else limit_bytes
        tables, chosen = _hiding(self.tables, hidden), self.chosen
        bound, places = _solve(tables)
        exact = tables.price(places) <= bound * (1 + 1e-9)
        if tables.memory(places) > limit:
            held = self._held(chosen, places) if limit_bytes is None else 0
            if limit_bytes is not None:
                tables, chosen = _hiding(self._whole, hidden), self._everything
                bound, places, exact = _within(tables, limit)
            elif held > limit:
                # arrays that are not alive together share places: the sum may be larger than the
                # limit by about as much as it is here
                share = tables.memory(places) / held
                tables, chosen = _hiding(self._whole, hidden), self._everything
                places, exact = self._within_device(tables, share * limit), False
        return self._found(chosen, places, bound, exact, time.perf_counter() - begin)

    def _within_device(self, tables: Tables, sum_bytes: float) -> list[int]:
        """The fastest choice that is found to fit the device; where none does, one of little
        memory.

        Tables add up what all arrays take, each in a place of its own: limits of that sum are tried
        from `sum_bytes` down to the device's memory, with which everything fits.
        """
        limit = float(self.machine.device.memory_bytes)
        for part in RELAXED:
            places = _within(tables, limit + part * (sum_bytes - limit))[1]
            if self._held(self._everything, places) <= limit:
                break
        return places

    def _held(self, chosen: list[Any], places: list[int]) -> int:
        """What the largest rank needs at once under a choice."""
        return self.held_bytes(self._found(chosen, places, 0.0, False, 0.0).plan)

    def held_bytes(self, plan: Plan) -> int:
        """What the largest rank needs at once under a plan."""
        return int(price(self.network, plan, self.machine, **self.pricing).memory_bytes)

    def smallest(self) -> Found:
        """The plan of least memory, if every array has a place of its own."""
        begin = time.perf_counter()
        _, places = _solve(self._whole, seconds=0.0, per_byte=1.0)
        return self._found(self._everything, places, 0.0, True, time.perf_counter() - begin)

    def _found(self, chosen: list[Any], places: list[int], bound: float, exact: bool,
               search_s: float) -> Found:
        tables = self.tables if chosen is self.chosen else self._whole
        configs = configured(self.units,
                             (rows[place] for rows, place in zip(chosen, places, strict=True)))
        objective = tables.price(places)
        return Found(
            # sums in another order: a bound is above what it bounds by rounding only
            replace(self.plan, configs=configs), objective, tables.memory(places), exact, min(bound, objective), self.eliminations,
            self.configurations, sum(map(len, self.chosen)), self.table_s, search_s,
        )


def _first(degrees: Any, seconds: Any) -> Any:
    """The cheapest configurations, and those that cut one axis only, by as much as they can: what
    the named strategies are made of.
    """
    product = degrees.prod(axis=1)
    pure = (degrees > 1).sum(axis=1) <= 1
    whole = np.flatnonzero(pure & (product == product.max()))
    return np.union1d(np.argsort(seconds, kind="stable")[:FIRST], whole)


def _pairs(network: Network) -> list[tuple[int, int]]:
    place = {layer.name: i for i, layer in enumerate(network.layers)}
    return [(place[name], place[layer.name]) for layer in network.layers for name in layer.inputs]


def _shared(rows: list[Any]) -> list[Any]:
    """Equal arrays made the same object, so that equal questions are answered once."""
    known: dict[bytes, Any] = {}
    return [known.setdefault(r.tobytes(), r) for r in rows]


def _same(kept: list[Table], nodes: list[Table], chosen: list[Any]) -> list[Table]:
    """Tables cut out of the same table at the same rows made the same object."""
    known: dict[tuple[int, int], Table] = {}
    return [known.setdefault((id(n), id(rows)), t) for t, n, rows in zip(kept, nodes, chosen, strict=True)]


def _hiding(tables: Tables, hidden: float) -> Tables:
    """The same problem with part of the sums of gradients for nothing."""
    if hidden == 0.0:
        return tables
    known: dict[int, Table] = {}
    for t in tables.nodes:
        known.setdefault(id(t), t.hiding(hidden))
    return Tables(tables.units, [known[id(t)] for t in tables.nodes], tables.edges)


def _solve(tables: Tables, seconds: float = 1.0, per_byte: float = 0.0) -> tuple[float, list[int]]:
    """A bound of the least sum of seconds times a weight, plus bytes times theirs, and the choice:
    of what can be eliminated, the least.
    """
    known: dict[int, Any] = {}

    def weigh(t: Table) -> Any:
        if id(t) not in known:
            known[id(t)] = t.seconds if (seconds, per_byte) == (1.0, 0.0) else seconds * t.seconds + per_byte * t.bytes
        return known[id(t)]

    return solve_any([weigh(t) for t in tables.nodes],
                     {pair: weigh(t) for pair, t in tables.edges.items()})


def _within(tables: Tables, limit: float) -> tuple[float, list[int], bool]:
    """The fastest found that fits (Lagrangian relaxation), the bound that it proves, and whether
    the two meet.

    For a price of memory the optimum of seconds + price * (bytes - limit) is a lower bound of the
    seconds of every plan that fits; the price is bisected between plans that do not fit and plans
    that do. A gap that is left is closed exactly where the case is small.
    """
    _, smallest = _solve(tables, 0.0, 1.0)
    if tables.memory(smallest) > limit:
        return 0.0, smallest, False
    best, best_s = smallest, tables.price(smallest)
    # of several fastest plans, one that fits: a price of memory too small to count
    bound, places = _solve(tables, 1.0, 1e-10 * best_s / max(1.0, tables.memory(smallest)))
    bound -= 1e-10 * best_s / max(1.0, tables.memory(smallest)) * limit
    if tables.memory(places) <= limit:
        return bound, places, True
    low, high = 0.0, best_s / max(1.0, tables.memory(smallest))
    for _ in range(60):  # a price at which plans fit
        value, places = _solve(tables, 1.0, high)
        bound = max(bound, value - high * limit)
        if tables.memory(places) <= limit:
            break
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        price = (low + high) / 2
        value, places = _solve(tables, 1.0, price)
        bound = max(bound, value - price * limit)
        if best_s <= bound * (1 + 1e-9):
            break
        if tables.memory(places) <= limit:
            high = price
            if tables.price(places) < best_s:
                best, best_s = places, tables.price(places)
        else:
            low = price
    if best_s > bound * (1 + 1e-9):
        within = solve_within(
            [(t.seconds, t.bytes) for t in tables.nodes], {pair: (t.seconds, t.bytes) for pair, t in tables.edges.items()}, limit, best_s
        )
        if within is not None:
            return within[0], within[1], True
    return bound, best, best_s <= bound * (1 + 1e-9)

