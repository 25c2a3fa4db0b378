"""A layer-wise plan made faster in time: layers configured otherwise, where the timeline and not
the plain sum prefers it.

Which communication computing hides is no sum over layers and edges. From the optimum of a sum,
layers change to others of their configurations: those that add little to the sum are tried at once,
as cases of a family.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcpar.cost.price_family import price_family
from hpcpar.plan.config import Config
from hpcpar.search.candidates import Candidate, of_plan
from hpcpar.search.layerwise import Search
from hpcpar.search.tables import configured

#: Changes that are tried in a round, times the network's layers, about (what a family costs); and
#: so many at least.
WORK, FEWEST = 800, 16
#: Rounds of changes, and the part of an iteration that one has to gain.
ROUNDS, LEAST = 4, 1e-4

#: The place of a unit, and of a configuration in its space.
Change = tuple[int, int]


def polished(search: Search, found: Candidate) -> Candidate:
    """The plan, or a faster one that fits as well, by changes of single units; a plan that is not
    of the search's tables as it is.
    """
    for _ in range(ROUNDS):
        places = [unit.space.find(found.plan.configs[unit.layers[0].name]) for unit in search.units]
        if None in places or not (changes := _changes(search, rows := np.array(places))):
            break
        order = _order(search, found,
                       np.stack([rows, *(_changed(rows, [change]) for change in changes)]))
        better = [changes[case - 1] for case in order[: int(np.flatnonzero(order == 0)[0])]]
        if not better:
            break
        # of each unit the best change; then the best of them, the best two, ... together
        first: dict[int, Change] = {}
        for change in better:
            first.setdefault(change[0], change)
        joint = np.stack([_changed(rows, list(first.values())[: i + 1]) for i in range(len(first))])
        best = of_plan(found.task,
                       replace(found.plan,
                               configs=configured(search.units,
                                                  joint[_order(search, found, joint)[0]])))
        *same, seconds = found.order
        if best.order >= (*same, seconds * (1 - LEAST)):
            break
        found = best
    return found


def _changed(rows: Any, changes: list[Change]) -> Any:
    out = rows.copy()
    for unit, row in changes:
        out[unit] = row
    return out


def _changes(search: Search, rows: Any) -> list[Change]:
    """Changes that add least to the plain sum, in turn with the sums of gradients and without."""
    here = search.around(rows)
    if here is None:
        return []
    tables, chosen, places = here
    moved = [np.zeros(len(kept)) for kept in chosen]
    for (a, b), table in tables.edges.items():
        moved[a] += table.seconds[:, places[b]]
        moved[b] += table.seconds[places[a]]
    added: tuple[list[Any], list[Any]] = ([], [])
    for node, edges, place in zip(tables.nodes, moved, places, strict=True):
        seconds = node.seconds + edges
        for out, values in zip(added, (seconds, seconds - node.hideable), strict=True):
            out.append(values - values[place])
            out[-1][place] = np.inf
    units, kept = np.repeat(np.arange(len(chosen)),
                            [len(some) for some in chosen]), np.concatenate(chosen)
    ranked = np.stack([np.argsort(np.concatenate(values), kind="stable")[: len(kept) - len(chosen)]
                       for values in added], axis=1)
    some = list(dict.fromkeys(ranked.ravel().tolist()))[: max(FEWEST,
                                                              WORK // len(search.network.layers))]
    return [(int(units[i]), int(kept[i])) for i in some]


def _order(search: Search, found: Candidate, rows: Any) -> Any:
    """Cases [cases, units], the best first."""
    configs, known = dict[str, Config](), dict[Any, Config]()
    for unit, chosen in zip(search.units, rows.T, strict=True):
        for i, layer in enumerate(unit.layers):
            key = (id(unit.space), chosen.tobytes(), i > 0)
            if key not in known:
                known[key] = unit.space.config(chosen, i > 0)
            configs[layer.name] = known[key]
    task = found.task
    costs = price_family(task.network, replace(found.plan, configs=configs), task.machine,
                         **task.price_options)
    large = costs.memory.total_bytes > task.machine.device.memory_bytes
    return np.lexsort([np.broadcast_to(values, len(rows)) for values in (costs.iteration_s, large)])
