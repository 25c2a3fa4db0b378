"""Decides which units change their configurations, by local search under the timeline.

Hidden communication is not additive over layers and edges, so the optimum of the tables need not be
the fastest plan. The search prices moves that add little to the tables' sum as a family of plans,
and applies the best ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.price_family import price_family
from hpcpar.plan.config import Config, Numbers
from hpcpar.plan.strategy import Configs
from hpcpar.search.candidates import Candidate, of_plan
from hpcpar.search.space import Space
from hpcpar.search.table_search import Search
from hpcpar.search.tables import configured

#: Approximate product of a round's moves and the network's layers; it bounds the cost of pricing.
WORK = 800
#: Fewest moves of a round.
FEWEST = 16
#: Largest number of rounds.
ROUNDS = 4
#: Smallest relative gain of a round.
LEAST_GAIN = 1e-4

#: Rows of the units' spaces: [units], or [plans, units].
Rows = NDArray[np.int64]


class UnitMove(NamedTuple):
    """A different configuration for one unit: `row` of its space."""

    unit: int
    row: int


def improve(search: Search, start: Candidate) -> Candidate:
    """Apply moves while they make the plan faster and its memory still fits, if it did before.

    A plan that is not in the search's tables stays unchanged.
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
        # joint moves: the best, the best two, ...
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
    """The row of each unit's configuration in its space; None if a space lacks one."""
    rows = [unit.space.find(candidate.plan.configs[unit.name]) for unit in search.units]
    return None if None in rows else np.array(rows)


def _moved(rows: Rows, moves: list[UnitMove]) -> Rows:
    moved = rows.copy()
    for unit, row in moves:
        moved[unit] = row
    return moved


def _cheapest_moves(search: Search, rows: Rows) -> list[UnitMove]:
    """The moves that add least to the tables' sum.

    They alternate between two rankings, with and without the gradient reductions.
    """
    containing = search.tables_with(rows.tolist())
    if containing is None:
        return []
    tables, chosen, places = containing
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
            increase = values - values[place]
            increase[place] = np.inf  # not a move
            sums += increase.tolist()
    count = len(moves) - len(chosen)
    ranks = np.stack([np.argsort(added, kind="stable")[:count],
                      np.argsort(added_hidden, kind="stable")[:count]], axis=1)
    most = max(FEWEST, WORK // len(search.network.layers))
    return [moves[i] for i in list(dict.fromkeys(ranks.ravel().tolist()))[:most]]


def _best_first(search: Search, candidate: Candidate, cases: Rows) -> NDArray[np.int64]:
    """Order of plans, [plans, units]: those that fit first, then by the time of an iteration."""
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
    memory: Numbers = costs.memory.total_bytes
    if np.any(memory > limit):
        # plans that differ in a few layers need about the same fraction of their bounds
        memory = memory * (candidate.memory_bytes / candidate.upper_bound_bytes)
    return np.lexsort([np.broadcast_to(values, len(cases))
                       for values in (costs.iteration_s, memory > limit)])
