"""Making the tables of a search: all that its layers and edges do priced in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.cost.bulk import Bulk
from hpcpar.cost.compute import timed_all
from hpcpar.cost.costs import repeats
from hpcpar.cost.links import Wires
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.parts import Move
from hpcpar.schedule.steps import Phase
from hpcpar.search.lowering import Lowerer, Part
from hpcpar.search.tables import Held, Link, Table, Unit


class TableMaker:
    """Prices nodes and edges of a plan's network; equal ones once.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations do not.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine, contention: float | None = None, gamma: float = 1.0) -> None:
        self.machine, self.lowerer = machine, Lowerer(network, plan, gamma)
        wires = Wires(machine, contention)
        # a plan's algorithms are chosen without regard to a contention that is given
        self.bulk = Bulk(machine, wires, plan.collectives, wires if contention is None else Wires(machine), plan.ranks)
        self._edges: dict[Any, Table] = {}

    def tables(self, units: Sequence[Unit], links: Sequence[Link]) -> tuple[list[Table], list[Table]]:
        """OptCNN's tC and tS of units (all that their configurations decide alone), and tX of edges, each for its pairs."""
        low = self.lowerer.lower(units, links, self._edges)
        seconds, costs = self.bulk.seconds(low.freight), timed_all(self.machine, low.works)
        made = [self._table(part, held, seconds, costs) for part, held in zip(low.parts, low.held, strict=True)]
        for keys, table in zip(low.groups, made[len(low.nodes):], strict=True):
            for i, key in enumerate(keys):
                self._edges[key] = table.of_stack(i)
        return [made[low.nodes[key]] for key in low.node_keys], [self._edges[key] for key in low.edge_keys]

    def _table(self, part: Part, held: Held, moves: list[Any], costs: list[tuple[Any, Any]]) -> Table:
        """The sum over the steps of a unit, or of stacked edges."""
        seconds, hideable = np.zeros(part.shape), np.zeros(part.shape)
        measured: Any = np.bool_(bool(self.machine.compute))
        for step, line in zip(part.steps, part.lines, strict=True):
            times = repeats(part.plan, step.phase)
            if isinstance(step, Move):
                moved = moves[line]
                seconds += moved if times == 1 else times * moved
                if step.phase is Phase.GRADIENT:
                    hideable += moved
            else:
                cost, known = costs[line]
                if self.machine.compute:
                    measured = measured & (known | np.equal(cost, 0))
                if step.present is not True and not np.all(step.present):
                    cost = np.where(step.present, cost, 0.0)
                seconds += cost if times == 1 else times * cost
        return Table(seconds, held, hideable, measured)
