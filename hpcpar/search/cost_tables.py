"""Making the tables of a search: all that its layers and edges do priced in one go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.cost.compute.step_time import timed_all
from hpcpar.cost.network.bulk import Bulk
from hpcpar.cost.network.contention import Wires
from hpcpar.cost.price_family import repeats
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Phase
from hpcpar.search.lowering import Lowerer, Part
from hpcpar.search.tables import Link, Table, Unit


class TableMaker:
    """Prices nodes and edges of a plan's network; equal ones once.

    Parameters
    ----------
    plan : Plan
        Whose options count (type, collectives, synchronisation, ...); its configurations do not.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine,
                 contention: float | None = None, gamma: float = 1.0) -> None:
        self.machine, self.lowerer = machine, Lowerer(network, plan, gamma)
        wires = Wires(machine, contention)
        # a plan's algorithms are chosen without regard to a contention that is given
        self.bulk = Bulk(machine, wires, plan.collectives, wires if contention is None
                         else Wires(machine), plan.ranks)
        self._edges: dict[Any, Table] = {}

    def tables(self, units: Sequence[Unit], links: Sequence[Link]) -> tuple[list[Table], list[Table]]:
        """OptCNN's tC and tS of units (all that their configurations decide alone), and tX of
        edges, each for its pairs.
        """
        low = self.lowerer.lower(units, links, self._edges)
        seconds, costs = self.bulk.seconds(low.freight), timed_all(self.machine, low.works)
        nodes = {key: table for key, part in low.nodes.items()
                 for table in self._tables(part, seconds, costs)}
        for keys, part in low.edges:
            self._edges.update(zip(keys, self._tables(part, seconds, costs), strict=True))
        return [nodes[key] for key in low.node_keys], [self._edges[key] for key in low.edge_keys]

    def _tables(self, part: Part, moves: list[Any], costs: list[tuple[Any, Any]]) -> list[Table]:
        """The sums over the steps of a unit, or of each of some edges."""
        seconds, hideable = np.zeros((2, len(part.held), math.prod(part.shape)))
        measured: Any = np.bool_(bool(self.machine.compute))
        for step in part.steps:
            times = repeats(self.lowerer.plan, step.phase)
            if step.moves:
                moved = moves[step.place]
                seconds += moved if times == 1 else times * moved
                if step.phase is Phase.GRADIENT:
                    hideable += moved
            else:
                cost, known = costs[step.place]
                if self.machine.compute:
                    measured = measured & (known | np.equal(cost, 0))
                if step.present is not True and not np.all(step.present):
                    cost = np.where(step.present, cost, 0.0)
                seconds += cost if times == 1 else times * cost
        return [Table(s.reshape(part.shape), held, h.reshape(part.shape), measured)
                for s, held, h in zip(seconds, part.held, hideable, strict=True)]
