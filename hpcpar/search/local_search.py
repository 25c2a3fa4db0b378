"""Local search under the timeline: single layers change to other configurations.

Hidden communication is not additive over layers and edges, so the optimum of the tables need not be
the fastest plan. Moves that add little to the tables' sum are priced together, as cases of a family
of plans, and the best are applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.price_family import price_family
from hpcpar.plan.config import Config, Numbers
from hpcpar.plan.strategy_request import Configs
from hpcpar.search.candidates import Candidate, of_plan
from hpcpar.search.space import Space
from hpcpar.search.table_search import Search
from hpcpar.search.tables import configured

#: Moves of a round times layers of the network, about: it bounds the cost of pricing them.
WORK = 800
#: Moves of a round, at least.
FEWEST = 16
#: Rounds, at most.
ROUNDS = 4
#: Part of an iteration that a round has to gain.
LEAST_GAIN = 1e-4

#: Rows of the units' spaces: [units], or [cases, units].
Rows = NDArray[np.int64]


class UnitMove(NamedTuple):
    """Another configuration for one unit: `row` of its space."""

    unit: int
    row: int


def improve(search: Search, start: Candidate) -> Candidate:
    """Applies moves of single units while they make the plan faster and it fits as before.

    A plan that is not in the search's tables is returned unchanged.
    """
    best = start
    for turn in range(ROUNDS):
        best.task.tell(f"layer by layer: local search, round {turn + 1} of {ROUNDS} at most")
        rows = _rows_of(search, best)
        moves = [] if rows is None else _cheapest_moves(search, rows)
        if rows is None or not moves:
            break
        order = _best_first(search, best, np.stack([rows, *(_moved(rows, [m]) for m in moves)]))
        unmoved = int(np.flatnonzero(order == 0)[0])
        best_of_unit: dict[int, UnitMove] = {}
        for case in order[:unmoved]:
            move = moves[case - 1]
            best_of_unit.setdefault(move.unit, move)
        if not best_of_unit:
            break
        # the best move alone, the best two together, ...
        ranked = list(best_of_unit.values())
        joint = np.stack([_moved(rows, ranked[: i + 1]) for i in range(len(ranked))])
        fastest = joint[_best_first(search, best, joint)[0]]
        moved = of_plan(best.task, replace(best.plan, configs=configured(search.units, fastest)))
        *same, seconds = best.order
        if moved.order >= (*same, seconds * (1 - LEAST_GAIN)):
            break
        best = moved
    return best


def _rows_of(search: Search, candidate: Candidate) -> Rows | None:
    """The row of each unit's configuration in its space; None where one is not in the space."""
    rows = [unit.space.find(candidate.plan.configs[unit.name]) for unit in search.units]
    return None if None in rows else np.array(rows)


def _moved(rows: Rows, moves: list[UnitMove]) -> Rows:
    moved = rows.copy()
    for unit, row in moves:
        moved[unit] = row
    return moved


def _cheapest_moves(search: Search, rows: Rows) -> list[UnitMove]:
    """The moves that add least to the tables' sum.

    Two rankings alternate: with the gradient reductions, and without.
    """
    found = search.tables_with(rows.tolist())
    if found is None:
        return []
    tables, chosen, places = found
    edge_seconds = [np.zeros(len(kept)) for kept in chosen]
    for (a, b), table in tables.edges.items():
        edge_seconds[a] += table.seconds[:, places[b]]
        edge_seconds[b] += table.seconds[places[a]]
    moves: list[UnitMove] = []
    added: list[float] = []
    added_hidden: list[float] = []
    for unit, place in enumerate(places):
        seconds = tables.nodes[unit].seconds + edge_seconds[unit]
        hidden = seconds - tables.nodes[unit].hideable
        moves += [UnitMove(unit, row) for row in chosen[unit].tolist()]
        for sums, values in ((added, seconds), (added_hidden, hidden)):
            more = values - values[place]
            more[place] = np.inf  # no move
            sums += more.tolist()
    count = len(moves) - len(chosen)
    ranks = np.stack([np.argsort(added, kind="stable")[:count],
                      np.argsort(added_hidden, kind="stable")[:count]], axis=1)
    most = max(FEWEST, WORK // len(search.network.layers))
    return [moves[i] for i in list(dict.fromkeys(ranks.ravel().tolist()))[:most]]


def _best_first(search: Search, candidate: Candidate, cases: Rows) -> NDArray[np.int64]:
    """Order of cases [cases, units]: those that fit first, each by the time of an iteration."""
    configs: Configs = {}
    families: dict[tuple[Space, bytes, bool], Config] = {}
    for unit, rows in zip(search.units, cases.T, strict=True):
        for i, layer in enumerate(unit.layers):
            key = (unit.space, rows.tobytes(), i > 0)
            if key not in families:
                families[key] = unit.space.config(rows, i > 0)
            configs[layer.name] = families[key]
    task = candidate.task
    plan = replace(candidate.plan, configs=configs)
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    limit = task.machine.device.memory_bytes
    held: Numbers = costs.memory.total_bytes
    if np.any(held > limit):
        # plans that differ in a few layers need about the same part of their bounds
        held = held * (candidate.memory_bytes / candidate.upper_bound_bytes)
    return np.lexsort([np.broadcast_to(values, len(cases))
                       for values in (costs.iteration_s, held > limit)])
