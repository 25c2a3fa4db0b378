"""Decides Gholami's question: which Pr x Pc, and model or domain parallelism for which layer.

Eq 9 answers it by communication alone. Beside its answer, every grid has the price of its schedule,
and the fastest named strategy on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.network.graph import Network
from hpcpar.papers.gholami_choice import (
    CUTS,
    PHASES,
    CostTerm,
    GridChoice,
    every_grid,
    on_grid,
    total_s,
)
from hpcpar.plan.config import Config
from hpcpar.plan.limits import passed_limits
from hpcpar.plan.plan import Plan
from hpcpar.plan.strategies import entry_of, parse
from hpcpar.search.auto import strategies_to_try
from hpcpar.search.candidates import Candidate, best_of, priced, priced_configurations
from hpcpar.search.integrated import NAME, configs_of, link_of

#: Strategies that cut layers by model, domain or batch on one grid, numbered Pr x Pc.
ON_ONE_GRID = (NAME, "grid", "grid-fc", "domain")


def layer_cut(config: Config) -> str:
    """A layer's cut in the paper's words: ``model``, ``domain`` or ``batch``; else empty."""
    image = int(config.d * config.h * config.w)
    cuts = {"model": int(config.c), "domain": image, "": int(config.k)}
    cut = [name for name, parts in cuts.items() if parts > 1]
    if len(cut) > 1 or (not cut and int(config.replicas) > 1):
        return ""
    return cut[0] if cut else "batch"


def grid_of(network: Network, plan: Plan) -> tuple[int, int, dict[str, str]] | None:
    """Pr, Pc and the cut of every layer with a product; None if the plan has no such grid."""
    configs = {layer.name: plan.configs[layer.name] for layer in network.matmul_layers}
    cuts = {name: layer_cut(config) for name, config in configs.items()}
    parts = {(int(c.ranks // c.n), int(c.n)) for name, c in configs.items()
             if cuts[name] != "batch"} or {(1, plan.ranks)}
    if (len(parts) > 1 or not all(cuts.values()) or plan.fc_passes > 1
            or any(int(c.ranks) != plan.ranks for c in configs.values())):
        return None
    return *parts.pop(), cuts


@dataclass(frozen=True)
class GridRow:
    """A grid with Eq 9's choice, its price by the schedule, and the fastest strategy on the grid.

    `fastest` is priced in a family, unless it is the fastest of all grids.
    """

    choice: GridChoice
    candidate: Candidate
    fastest: Candidate

    @property
    def memory_bytes(self) -> int:
        """Memory of the largest rank; an upper bound unless the plan is priced exactly."""
        own = self.candidate
        return own.memory_bytes if own.exact_costs else own.upper_bound_bytes

    @property
    def idle_ranks(self) -> int:
        """Most ranks that a layer leaves idle."""
        limits = passed_limits(self.candidate.task.network, self.candidate.plan)
        return max((limit.idle_ranks for limit in limits), default=0)


@dataclass(frozen=True)
class GridAnswer:
    """A plan on its grid, and all grids.

    Attributes
    ----------
    own : GridChoice
        The plan's cuts on its grid, and every layer's communication under all cuts.
    grids : tuple of GridRow
        In ascending order of Pr; the first is pure batch parallelism if there are enough samples.
    by_equation, by_schedule : GridRow
        The grid with the least communication by Eq 9, and the grid with the fastest iteration.
    """

    own: GridChoice
    grids: tuple[GridRow, ...]
    by_equation: GridRow
    by_schedule: GridRow

    def speedups(self, row: GridRow) -> tuple[float, float]:
        """Communication by Eq 9 and iteration of the first grid, divided by the row's."""
        first, ours_s = self.grids[0], row.choice.seconds
        return (first.choice.seconds / ours_s if ours_s else 1.0,
                first.candidate.iteration_s / row.candidate.iteration_s)

    def grid_json(self) -> dict[str, Any]:
        """The plan's grid, and the best grids."""
        return {"pr": self.own.pr, "pc": self.own.pc, **_split(self.own.terms),
                "by_equation": self.by_equation.candidate.strategy,
                "by_schedule": self.by_schedule.fastest.strategy}

    def layers_json(self) -> dict[str, dict[str, Any]]:
        """The cuts of every layer with a product, and its communication under each."""
        return {layer.layer: {
            "cut": layer.cut, "change_s": layer.change_s,
            **{f"{cut}_s": total_s(terms) for cut, terms in layer.terms.items()},
            "terms": {cut: {phase: _split(terms, phase) for phase in PHASES}
                      for cut, terms in layer.terms.items()},
        } for layer in self.own.layers}

    def grids_json(self) -> list[dict[str, Any]]:
        """All grids."""
        rows = []
        for row in self.grids:
            communication, iteration = self.speedups(row)
            rows.append({
                "pr": row.choice.pr, "pc": row.choice.pc,
                **{cut: list(row.choice.cut_by(cut)) for cut in CUTS}, **_split(row.choice.terms),
                "iteration_s": row.candidate.iteration_s, "memory_bytes": row.memory_bytes,
                "fits": row.candidate.fits, "idle_ranks": row.idle_ranks,
                "communication_speedup": communication, "iteration_speedup": iteration,
                "fastest": row.fastest.strategy, "fastest_iteration_s": row.fastest.iteration_s})
        return rows


def _split(terms: list[CostTerm], phase: str | None = None) -> dict[str, float]:
    """Communication time, and its terms with alpha and with beta."""
    chosen = [term for term in terms if phase in (None, term.phase)]
    return {"communication_s": total_s(chosen),
            "latency_s": sum(term.latency_s for term in chosen),
            "bandwidth_s": sum(term.bandwidth_s for term in chosen)}


def _surely_fast(candidate: Candidate) -> tuple[bool, tuple[bool, float]]:
    """Sort key: candidates that surely fit come first, then the fastest."""
    limit = candidate.task.machine.device.memory_bytes
    return candidate.upper_bound_bytes > limit, candidate.speed


def grid_answer(chosen: Candidate) -> GridAnswer | None:
    """Compares a plan with all grids; None if it is not on one grid."""
    task, link = chosen.task, link_of(chosen.task)
    network, found = task.network, grid_of(task.network, chosen.plan)
    if found is None or task.ranks == 1 or not network.matmul_layers:
        return None
    choices = every_grid(network, task.ranks, task.batch, link, task.most_parts)
    plans = priced_configurations(task, {f"{NAME}:{choice.name}": configs_of(task, choice)
                                         for choice in choices})
    names = [name for name in strategies_to_try(network, task.ranks, task.machine)
             if entry_of(name).name in ON_ONE_GRID and "/" not in name]
    rivals = [c for c in priced(task, names) if not c.refusal]
    best, rows = best_of([*plans, *rivals]), []
    for choice, plan in zip(choices, plans, strict=True):
        here = [plan, *(c for c in rivals if parse(c.strategy)[1] == (choice.pr, choice.pc))]
        named = [best for c in here if c.strategy == best.strategy]
        rows.append(GridRow(choice, plan, min(named or here, key=_surely_fast)))
    pr, pc, cuts = found
    own = on_grid(network, pr, pc, task.batch, link, cuts, task.most_parts)
    return GridAnswer(own, tuple(rows),
                      min(rows, key=lambda row: row.choice.seconds),
                      next(row for row in rows if row.fastest is best))
