"""Decides the fastest configurations within memory, from cost tables (OptCNN, Algorithm 1).

Only configurations that an optimal plan may contain get tables. A small first search gives an upper
bound U. If a configuration exceeds U even with the best choices elsewhere, no optimal plan has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.memory.memory import Memory
from hpcpar.cost.network.contention import NetworkModels
from hpcpar.cost.price_family import price_steps
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, Synchronization
from hpcpar.prediction.price import memory_of_ranks
from hpcpar.search.cost_tables import TableMaker
from hpcpar.search.edge_elimination import Eliminations, count_eliminations
from hpcpar.search.memory_limit import fastest_within, minimize
from hpcpar.search.space import Spaces
from hpcpar.search.tables import Link, Table, Tables, configured, layer_edges, units

#: All configurations of a layer get tables if there are at most this many.
FULL_TABLES_UP_TO = 128
#: Number of a layer's cheapest configurations in the small first search.
FIRST = 10
#: If more than this fraction of the configurations is promising, all get tables.
NEARLY_ALL = 0.9
#: Fractions of the gradient reductions that may count as hidden.
HIDDEN = tuple(i / 8 for i in range(9))
#: Memory limits to try in turn, from the sum of all arrays (1) to the device's memory (0).
RELAXED = (1.0, 0.8, 0.5, 0.0)

#: Rows of a unit's space: the configurations that have tables.
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes
    ----------
    objective_s : float
        OptCNN's Eq 1: the plain sum of an iteration's computation and communication.
    bytes : float
        Size of all arrays of the largest rank: an upper bound of its memory.
    exact : bool
        True if no plan of the space has a smaller objective. Plans on numbers of ranks outside the
        space (2 of 3 ranks) may be faster. A memory limit or approximate elimination may leave a
        gap to the bound.
    bound_s : float
        Lower bound of the objective, over all plans of the space that fit.
    overlap_bound_s : float
        Lower bound of an iteration, over all plans of the space and with any overlap; 0 if unknown.
    configurations, kept : int
        Configurations of all layers in the space, and number of them with tables.
    """

    plan: Plan
    objective_s: float
    bytes: float
    exact: bool
    bound_s: float
    overlap_bound_s: float
    eliminations: Eliminations
    configurations: int
    kept: int
    table_s: float
    search_s: float

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        e = self.eliminations
        return {"objective_s": self.objective_s, "bound_s": self.bound_s, "exact": self.exact,
                "overlap_bound_s": self.overlap_bound_s, "configurations": self.configurations,
                "kept_configurations": self.kept,
                "node_eliminations": e.nodes, "edge_eliminations": e.edges, "K": e.kept,
                "table_s": self.table_s, "search_s": self.search_s}


class Search:
    """The cost tables of a network on a number of ranks, and plans from them.

    Parameters
    ----------
    contention, gamma, networks, training
        As in `hpcpar.cost.price_family.price_steps`.
    most_parts : int, optional
        Most parts into which a layer may cut the mini-batch.
    options
        Options of `Plan`.
    """

    def __init__(self, network: Network, spec: NetworkSpec, ranks: int, batch: int,
                 machine: Machine, *, contention: float | None = None, gamma: float = 1.0,
                 most_parts: int | None = None, networks: NetworkModels | None = None,
                 training: bool = True, **options: Any) -> None:
        begin = time.perf_counter()
        self.network, self.machine = network, machine
        networks = NetworkModels() if networks is None else networks
        self.pricing: dict[str, Any] = {"contention": contention, "gamma": gamma,
                                        "networks": networks, "training": training}
        self.plan = Plan(spec, ranks, batch, "layerwise", {}, machine=machine,
                         **options)
        self.table_maker = TableMaker(network, self.plan, machine, **self.pricing)
        reductions = self.plan.synchronization is Synchronization.ALLREDUCE
        spaces = Spaces(network, ranks, most_parts or batch, machine, reductions)
        self.units = units(network, spaces)
        self.edges = layer_edges(network, self.units)
        self.eliminations = count_eliminations(len(network.layers), _layer_pairs(network))
        self.configurations = sum(len(u.space) for u in self.units)
        if max(len(u.space) for u in self.units) <= FULL_TABLES_UP_TO and not machine.compute:
            # all configurations get tables: make nodes and edges together
            self.chosen = _shared([np.arange(len(u.space)) for u in self.units])
            self.nodes, edges = self.table_maker.tables(self.units, self._links(self.chosen))
            self.tables = self._join(self.nodes, self.chosen, edges)
        else:
            self.nodes, _ = self.table_maker.tables(self.units, ())
            self.chosen = self._promising()
            self.tables = self._tables(self.chosen)
        self.table_s = time.perf_counter() - begin

    # -- tables ------------------------------------------------------------------------------------
    def _promising(self) -> list[Rows]:
        """Configurations of each unit that an optimal plan may contain, for any hidden fraction."""
        allowed = self._allowed
        if max(map(len, allowed)) <= FULL_TABLES_UP_TO:
            return allowed
        start = [rows[_first(unit.space.degrees[rows], table.seconds[rows])]
                 for rows, unit, table in zip(allowed, self.units, self.nodes, strict=True)]
        first = self._tables(_shared(start))
        keep = [np.zeros(len(u.space), bool) for u in self.units]
        for hidden in HIDDEN:
            tables = with_hidden(first, hidden)
            upper = tables.price(minimize(tables)[1])
            seconds = [(table.seconds - hidden * table.hideable)[rows]
                       for rows, table in zip(allowed, self.nodes, strict=True)]
            slack = upper * (1 + 1e-12) - sum(float(s.min()) for s in seconds)
            for kept, rows, s in zip(keep, allowed, seconds, strict=True):
                kept[rows[s <= s.min() + slack]] = True
        if sum(map(np.count_nonzero, keep)) > NEARLY_ALL * sum(map(len, allowed)):
            return allowed
        return _shared([np.flatnonzero(kept) for kept in keep])

    @cached_property
    def _allowed(self) -> list[Rows]:
        """All configurations of each unit; on a calibrated machine, those with measured times.

        A comparison of measured times with roofline estimates would only compare the two models.
        Units without measured configurations keep all.
        """
        allowed = []
        for unit, table in zip(self.units, self.nodes, strict=True):
            measured = np.flatnonzero(np.broadcast_to(table.measured, len(unit.space)))
            only_measured = bool(self.machine.compute) and len(measured) > 0
            allowed.append(measured if only_measured else np.arange(len(unit.space)))
        return _shared(allowed)

    @cached_property
    def _all_tables(self) -> Tables:
        """Tables of all configurations; under a memory limit, only a slow one may fit."""
        same = all(len(a) == len(b) for a, b in zip(self.chosen, self._allowed, strict=True))
        return self.tables if same else self._tables(self._allowed)

    def tables_with(self, rows: Sequence[int]) -> tuple[Tables, list[Rows], list[int]] | None:
        """Tables that contain a given configuration of each unit; None if there are none.

        Unmeasured configurations have no tables on a calibrated machine.

        Returns
        -------
        Tables
        list of ndarray
            The rows of each unit's space that have entries.
        list of int
            Index of each given configuration among these rows.
        """
        for chosen in (self.chosen, self._allowed):
            places = [np.flatnonzero(kept == row) for kept, row in zip(chosen, rows, strict=True)]
            if all(map(len, places)):
                tables = self.tables if chosen is self.chosen else self._all_tables
                return tables, chosen, [int(place[0]) for place in places]
        return None

    def _tables(self, chosen: list[Rows]) -> Tables:
        _, edges = self.table_maker.tables((), self._links(chosen))
        return self._join(self.nodes, chosen, edges)

    def _links(self, chosen: list[Rows]) -> list[Link]:
        return [Link(self.units[a], self.units[b], layer, which, chosen[a], chosen[b])
                for a, b, layer, which in self.edges]

    def _join(self, nodes: list[Table], chosen: list[Rows], edges: list[Table]) -> Tables:
        """The tables of chosen rows; parallel edges add up.

        Units with the same table and rows share one object, so that equal work happens once.
        """
        cut: dict[tuple[Table, bytes], Table] = {}
        for table, rows in zip(nodes, chosen, strict=True):
            key = (table, rows.tobytes())
            if key not in cut:
                cut[key] = table.at(rows)
        joined = Tables(self.units, [cut[table, rows.tobytes()]
                                     for table, rows in zip(nodes, chosen, strict=True)])
        for (a, b, _, _), table in zip(self.edges, edges, strict=True):
            old = joined.edges.get((a, b))
            joined.edges[a, b] = table if old is None else old + table
        return joined

    # -- plans -------------------------------------------------------------------------------------
    def best(self, limit_bytes: float | None = None, hidden: float = 0.0) -> SearchResult:
        """The fastest plan that fits the device, or the smallest if none fits.

        Parameters
        ----------
        limit_bytes : float, optional
            Limit of the sum of all arrays in the tables, instead of the device's memory.
        hidden : float
            Fraction of the gradient reductions, one of `HIDDEN`, that backpropagation hides; 0
            gives the papers' objective.
        """
        begin = time.perf_counter()
        limit = self.machine.device.memory_bytes if limit_bytes is None else limit_bytes
        tables, chosen = with_hidden(self.tables, hidden), self.chosen
        bound, places = minimize(tables)
        exact = tables.price(places) <= bound * (1 + 1e-9)
        if tables.memory(places) > limit and limit_bytes is not None:
            tables, chosen = with_hidden(self._all_tables, hidden), self._allowed
            bound, places, exact = fastest_within(tables, limit, self._smallest)
        elif tables.memory(places) > limit:
            alive = self.memory_bytes(self._plan(chosen, places))
            if alive > limit:
                # arrays that are not alive at once share memory, so the sum of all arrays may
                # exceed the limit by about this factor
                factor = tables.memory(places) / alive
                tables, chosen = with_hidden(self._all_tables, hidden), self._allowed
                places, exact = self._fastest_on_device(tables, factor * limit), False
        return self._result(chosen, places, bound, exact, time.perf_counter() - begin)

    def _fastest_on_device(self, tables: Tables, sum_bytes: float) -> list[int]:
        """The fastest choice found that fits the device, or one with little memory.

        It tries limits of the sum of all arrays, from `sum_bytes` down to the device's memory. A
        plan whose sum is below the device's memory always fits.
        """
        device = float(self.machine.device.memory_bytes)
        for part in RELAXED:
            _, places, _ = fastest_within(tables, device + part * (sum_bytes - device),
                                          self._smallest)
            if self._fits(self._plan(self._allowed, places)):
                break
        return places

    def memory_bytes(self, plan: Plan) -> int:
        """Memory of the largest rank under a plan."""
        return max(int(memory.total_bytes) for memory in self._memories(plan))

    def _memories(self, plan: Plan) -> Iterator[Memory]:
        steps = price_steps(self.network, plan, self.machine, **self.pricing)
        return memory_of_ranks(self.network, plan, steps, **self.pricing)

    def _fits(self, plan: Plan) -> bool:
        """True if the largest rank's memory is at most the device's."""
        device = self.machine.device.memory_bytes
        return all(memory.total_bytes <= device for memory in self._memories(plan))

    @cached_property
    def _overlap_bound_s(self) -> float:
        """Sum over all layers of the least time that nothing can hide.

        It contains computation and communication that the next step needs. It leaves out movements
        between layers and the loss, whose sum is due at the end of the iteration.
        """
        if self.plan.synchronization is not Synchronization.ALLREDUCE:
            return 0.0  # the distribution of weights may be hidden too
        return sum(float((table.seconds - table.hideable).min()) for table in self.nodes[:-1])

    @cached_property
    def _smallest(self) -> list[int]:
        """The choice with the smallest sum of all arrays."""
        return minimize(self._all_tables, seconds_weight=0.0, bytes_weight=1.0)[1]

    def smallest(self) -> SearchResult:
        """The plan with the smallest sum of all arrays."""
        begin = time.perf_counter()
        return self._result(self._allowed, self._smallest, 0.0, True, time.perf_counter() - begin)

    def _result(self, chosen: list[Rows], places: list[int], bound: float, exact: bool,
                search_s: float) -> SearchResult:
        tables = self.tables if chosen is self.chosen else self._all_tables
        objective = tables.price(places)
        return SearchResult(
            plan=self._plan(chosen, places),
            objective_s=objective,
            bytes=tables.memory(places),
            exact=exact,
            bound_s=min(bound, objective),  # the order of summation may round the bound up
            overlap_bound_s=self._overlap_bound_s,
            eliminations=self.eliminations,
            configurations=self.configurations,
            kept=sum(map(len, self.chosen)),
            table_s=self.table_s,
            search_s=search_s,
        )

    def _plan(self, chosen: list[Rows], places: list[int]) -> Plan:
        rows = (rows[place] for rows, place in zip(chosen, places, strict=True))
        return replace(self.plan, configs=configured(self.units, rows))


def with_hidden(tables: Tables, fraction: float) -> Tables:
    """The same problem with a fraction of the gradient reductions hidden."""
    if fraction == 0.0:
        return tables
    hidden = {table: table.hiding(fraction) for table in set(tables.nodes)}
    return Tables(tables.units, [hidden[table] for table in tables.nodes], tables.edges)


def _first(degrees: NDArray[np.int64], seconds: NDArray[np.float64]) -> Rows:
    """Configurations of the first search: the cheapest, and full cuts of a single axis.

    Named strategies consist of such cuts.
    """
    product = degrees.prod(axis=1)
    one_axis = (degrees > 1).sum(axis=1) <= 1
    full = np.flatnonzero(one_axis & (product == product.max()))
    return np.union1d(np.argsort(seconds, kind="stable")[:FIRST], full)


def _layer_pairs(network: Network) -> list[tuple[int, int]]:
    place = {layer.name: i for i, layer in enumerate(network.layers)}
    return [(place[name], place[layer.name]) for layer in network.layers for name in layer.inputs]


def _shared(rows: list[Rows]) -> list[Rows]:
    """Replace equal arrays by one object, so that equal tables are made once."""
    first: dict[bytes, Rows] = {}
    return [first.setdefault(r.tobytes(), r) for r in rows]
