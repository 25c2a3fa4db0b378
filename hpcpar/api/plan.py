"""The best plan of a network, or the plan of one strategy, with its prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from hpcpar.api.keywords import by_keyword
from hpcpar.api.options import LossOptions, PlanningOptions, about_machine, about_network
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import MachineLike, NetworkLike, machine_of, network_of
from hpcpar.cost.ratios import Ratio
from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.options import checks
from hpcpar.options.checks import image, jitters, positive, widths
from hpcpar.options.fields import about, option
from hpcpar.options.output_files import HTML
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.prediction.prediction import Prediction
from hpcpar.report.pictures import grid_plot, prediction_bars, svg, timeline_plot
from hpcpar.report.progress import SearchProgress
from hpcpar.report.tables import answer, plan_page, say
from hpcpar.report.tables.anchors import anchors_json
from hpcpar.report.tables.document import image as embedded
from hpcpar.report.tables.document import page_format
from hpcpar.report.tables.grid_tables import in_words
from hpcpar.report.tables.prediction_tables import schedule_rows
from hpcpar.schedule.runnable import not_executed, not_on_hosts
from hpcpar.schedule.steps import Schedule
from hpcpar.search import auto
from hpcpar.search.anchoring import fit
from hpcpar.search.candidates import SHOWN, Candidate
from hpcpar.search.choice import compared, times_as_fast
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.grids import ON_ONE_GRID, GridAnswer, grid_answer
from hpcpar.search.memory_advice import MemoryAdvice, advice_on
from hpcpar.search.robust import Robust, by_robustness
from hpcpar.search.sizes import SizeCase, case_of, scaled
from hpcpar.search.table_search import SearchResult
from hpcpar.simulation.noise import jitter_on
from hpcpar.simulation.simulate import require_size


@dataclass(frozen=True, repr=False)
class PlanResult(TableResult):
    """Priced plans of one network on one machine.

    Attributes
    ----------
    candidates : tuple of Candidate
        The choice (see `hpcpar.search.choice`), then its alternatives, best first.
    search : SearchResult or None
        The outcome of the layer-wise search, with ``strategy="layerwise"``.
    search_s : float
        Planning time.
    epochs : float
        Length of the training.
    robust : tuple of Robust
        With `robust`: the candidates nearly as fast as the fastest, the choice first.
    on_grid : bool
        Whether the user named a strategy on a grid, so that results compare all grids.
    sizes : tuple of SizeCase
        With `sizes`: the plans of other sizes of images, in ascending order.
    """

    candidates: tuple[Candidate, ...]
    search: SearchResult | None
    search_s: float
    epochs: float = 1.0
    robust: tuple[Robust, ...] = ()
    on_grid: bool = False
    sizes: tuple[SizeCase, ...] = ()

    @property
    def answer(self) -> str:
        """The plan to use, in one sentence."""
        use = answer.of_plan(self.prediction, self.epochs, choice=len(self.candidates) > 1)
        use += answer.beside(self.best, compared(self.candidates))
        return use + answer.statistics(self.prediction, self.best.other_statistics_s)

    @property
    def best(self) -> Candidate:
        """The choice."""
        return self.candidates[0]

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.best.plan

    @property
    def prediction(self) -> Prediction:
        """The price of the chosen plan."""
        return self.best.prediction

    @property
    def schedule(self) -> Schedule:
        """Every step of an iteration."""
        return self.best.costs.schedule

    @cached_property
    def ratios(self) -> tuple[Ratio | None, ...]:
        """Time of an iteration of each shown candidate, relative to the choice's; None for that."""
        return None, *(times_as_fast(self.best, c) for c in self.candidates[1:SHOWN])

    @cached_property
    def advice(self) -> MemoryAdvice | None:
        """How the choice fits in memory, or could be made to fit."""
        return advice_on(list(self.candidates))

    @cached_property
    def explanation(self) -> Explanation:
        """Limits of the choice, and the changes that would help most."""
        return explain(self.best.task.network, self.best)

    @cached_property
    def grid(self) -> GridAnswer | None:
        """The choice on its grid Pr x Pc, beside all grids; None if it is not on one grid, and for
        inference, for which the equations have no terms.
        """
        return grid_answer(self.best) if self.best.task.training else None

    def save_page(self, path: str, explained: bool = False) -> None:
        """Writes the answer, its grids, layers, timeline and memory as one page in HTML."""
        HTML.check(path)
        predictions = [c.prediction for c in self.candidates[:SHOWN]]
        figures = {"timeline": timeline_plot.timelines(predictions[:1])}
        grid = self.grid if self.on_grid or explained else None
        if grid is not None:
            figures["grids"] = grid_plot.grids_figure(grid)
        drawn = {name: embedded(svg(figure), name) for name, figure in figures.items()}
        words = in_words(self.best.task.network, self.plan)
        parts = plan_page.page(self.answer, words, predictions, grid, drawn)
        write_text(path, page_format(path).page(parts), "page")

    def save(self, path: str, force: bool = False) -> None:
        """Writes the plan file; a note tells if no run executes its precision.

        Raises
        ------
        InputError
            The file cannot be written, or the plan does not fit in memory and `force` is False.
        """
        if not (force or self.best.fits):
            raise InputError(f"{path} is not written: {self.best.strategy} does not fit in memory; "
                             "change the plan, or add --force")
        plans.save(self.plan, path)
        if reason := (not_executed(self.plan.framework)
                      or not_on_hosts(self.plan)):
            say(f"note: {reason}")

    def to_json(self, schedule: bool = False, explained: bool = False) -> dict[str, Any]:
        """The document of ``hpcpar plan --json``, with ``--show-schedule`` or ``--explain``."""
        data = self.prediction.to_json(steps=True) | {"search_s": self.search_s}
        if self.search is not None:
            data["search"] = self.search.to_json()
        data |= anchors_json(self.best.task.machine.anchored)
        data["alternatives"] = [
            {"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits}
            for c in self.candidates[1:]]
        for alternative, ratio in zip(data["alternatives"], self.ratios[1:], strict=False):
            alternative |= ratio.to_json("ratio") if ratio else {}
        if self.robust:
            data["robust"] = [{"strategy": c.strategy, "iteration_s": c.iteration_s,
                               "slow_s": slow_s} for c, slow_s in self.robust]
        if self.sizes:
            data["sizes"] = [case.to_json() for case in self.sizes]
        if (self.on_grid or explained) and self.grid is not None:
            of_layer = self.grid.layers_json()
            data |= {"grid": self.grid.grid_json(), "grids": self.grid.grids_json(), "layers": [
                layer | of_layer.get(layer["name"], {}) for layer in data["layers"]]}
        if explained:
            data["explain"] = self.explanation.to_json()
        if schedule:
            data["schedule"] = schedule_rows(self.schedule, self.prediction)
        return data

    def rows(self) -> list[Record]:
        """The price of every plan, as ``hpcpar plan --csv``."""
        return flat([c.prediction.to_json() for c in self.candidates])

    def _shown(self) -> list[Record]:
        return flat([c.prediction.to_json() for c in self.candidates[:SHOWN]])

    def plot(self, path: str | None = None) -> Any:
        """Draws the best plans, or all grids if the strategy asks for one, into the file `path` if
        given; returns the figure.
        """
        if self.on_grid and self.grid is not None:
            return grid_plot.grids_figure(self.grid, path)
        return prediction_bars.bars([c.prediction for c in self.candidates[:SHOWN]], {}, path)


@dataclass(frozen=True)
class PlanArguments(PlanningOptions, LossOptions, section="plan"):
    """The options of ``hpcpar plan`` that determine the plan and its price."""

    network: NetworkLike = field(metadata=about_network())
    ranks: int = field(metadata=about(checks.ranks, "number of ranks", "P"))
    batch: int = field(metadata=about(
        positive, "samples per mini-batch, over all ranks", "B"))
    machine: MachineLike = field(
        default="local", metadata=about_machine("the site's, else local"))
    strategy: str = option(
        "auto", str,
        "auto, the simplest of the fastest found that fit, or one of "
        + ", ".join(entry.form for entry in STRATEGIES.values()), "S", first=True,
        details="; ".join(f"{entry.form} = {entry.help}" for entry in STRATEGIES.values())
        + "; the suffix '/outer' spreads model groups across nodes")
    _: KW_ONLY
    robust: float | str | None = option(
        None, jitters,
        "simulate the plans within 2% of the fastest with this jitter of compute steps, as in 0.05 "
        "(see hpcpar simulate --jitter), and take the one with the lowest 95th percentile",
        "SHARE|measured")
    sizes: Iterable[int] | str | None = option(
        None, widths, "plan for images of these widths, too, and say from which on cutting them "
        "pays, and which ranks hold whole", "W,W,...", section="prediction")


def find_plan(asked: PlanArguments) -> PlanResult:
    """Finds the best plan, or prices the plan of one strategy."""
    spec, net = network_of(asked.network, asked.input, asked.classes, asked.loss,
                           asked.label_smoothing)
    options = asked.planning(net)
    where = asked.loaded(machine_of(asked.machine))
    if asked.measured:
        where = fit(where, net, spec, asked.measured, options)[0]
    if asked.robust is not None and asked.forward_only:
        raise InputError("--robust simulates iterations of training: drop it, or --forward-only")
    if asked.sizes and asked.strategy != "auto":
        raise InputError("--sizes finds the best plan of each size: drop it, or --strategy "
                         f"{asked.strategy}")
    jitter = None if asked.robust is None else jitter_on(where, asked.robust)
    if jitter is not None:
        require_size(asked.ranks)
    begin = time.perf_counter()
    ranking: list[Robust] = []
    with SearchProgress() as progress:
        candidates, search = _candidates(net, spec, asked.strategy, asked.ranks, asked.batch, where,
                                         tell=progress.tell, **options)
        if jitter is not None:
            ranking = by_robustness(candidates, jitter)
        cases = _sizes(asked, net, where, progress.tell) if asked.sizes else ()
    near = [each.candidate for each in ranking]
    candidates = near + [c for c in candidates if c not in near]
    return PlanResult(tuple(candidates), search, time.perf_counter() - begin, asked.epochs,
                      tuple(ranking), asked.strategy.partition(":")[0] in ON_ONE_GRID, cases)


plan = by_keyword(PlanArguments, find_plan)


def _sizes(asked: PlanArguments, network: Network, machine: Machine,
           tell: Callable[[str], None]) -> tuple[SizeCase, ...]:
    """The plans of the sizes that are asked for."""
    shape = network.image_shape if asked.input is None else image(asked.input)
    cases = []
    for width in widths(asked.sizes):
        spec, net = network_of(asked.network, scaled(shape, width), asked.classes, asked.loss,
                               asked.label_smoothing)
        tell(f"images of width {width}")
        cases.append(case_of(net, spec, asked.ranks, asked.batch, machine, tell=tell,
                             **asked.planning(net)))
    return tuple(cases)


def _candidates(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> tuple[list[Candidate], SearchResult | None]:
    """The candidates, best first, and the outcome of a layer-wise search."""
    if strategy not in ("auto", "layerwise"):
        return [auto.price_named(network, spec, strategy, ranks, batch, machine, **options)], None
    layerwise = strategy == "layerwise"
    found = auto.best(network, spec, ranks, batch, machine, layers=not layerwise,
                      **options)
    if not layerwise:
        return found, None
    best, result = auto.named_or_layerwise(network, spec, ranks, batch, machine, known=found,
                                           **options)
    return [best, *found], result
