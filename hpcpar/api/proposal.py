"""A proposal for compute time: scaling, memory and node-hours on one page."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

from hpcpar.api.keywords import by_keyword
from hpcpar.api.options import NO_EPOCH
from hpcpar.api.predict import (
    PredictArguments,
    PredictResult,
    StrategyArguments,
    price_plans,
    refuse,
)
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.options.checks import magnitude, path, positive, several_ranks
from hpcpar.options.checks import ranks as size
from hpcpar.options.fields import option
from hpcpar.options.output_files import PAGE, PICTURE
from hpcpar.report import sweep_points
from hpcpar.report.pictures import finish, pyplot, svg
from hpcpar.report.pictures.proposal_plot import scaling_figure
from hpcpar.report.pictures.sweep_plots import DPI
from hpcpar.report.sweep_points import IterationParts, Point, base, efficiency, predicted_speedup
from hpcpar.report.tables import amount, say
from hpcpar.report.tables.document import page_format
from hpcpar.report.tables.proposal import page, request
from hpcpar.search.candidates import Candidate
from hpcpar.search.scaling import nodes
from hpcpar.sweep import folder
from hpcpar.sweep import study as studies
from hpcpar.sweep.collect import points as points_of
from hpcpar.sweep.study import Study

#: Least parallel efficiency of production runs whose size is not given.
LEAST_EFFICIENCY = 0.7
#: Kinds of scaling, and the options of their mini-batches.
_BATCH = {"strong": "batch", "weak": "batch_per_rank"}


@dataclass(frozen=True)
class ProposalArguments(StrategyArguments):
    """The options of ``hpcpar proposal`` that decide its numbers."""

    ranks: int | str | Iterable[int] | None = option(
        None, several_ranks, "numbers of ranks in the tables (with --sweep: the sweep's)",
        "P,P,...", first=True)
    _: KW_ONLY
    sweep: tuple[str, ...] = option(
        (), path, "take network, machine, plans and measured times of this sweep (may be repeated: "
        "strong and weak scaling)", "FOLDER", section="job", nargs="*", first=True)
    production: int | None = option(
        None, size, "ranks of the production runs (default: the fastest size, or the smallest "
        f"about as fast, with at least {LEAST_EFFICIENCY:.0%} parallel efficiency)", "P",
        section="job", first=True)
    runs: int = option(1, positive, "production runs, of --epochs each", "N", section="job",
                      first=True)
    reserve: float = option(0.2, magnitude, "reserve, as a share of the runs' node-hours", "SHARE",
                            section="job")


@dataclass(frozen=True, repr=False)
class ProposalResult(TableResult):
    """A proposal.

    Attributes
    ----------
    series : mapping
        The fastest plan of every size, by ``strong`` and ``weak``.
    campaign : mapping
        The production runs.
    chosen : Candidate
        Their plan.
    notes : tuple of str
        Sizes that cannot run.
    """

    series: Mapping[str, tuple[Point, ...]]
    campaign: Mapping[str, Any]
    chosen: Candidate
    notes: tuple[str, ...]

    @property
    def answer(self) -> str:
        """The compute time in one sentence."""
        return request(self.campaign, self.chosen)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar proposal --json``."""
        return {"answer": self.answer, "campaign": dict(self.campaign), "notes": list(self.notes),
                "scaling": {kind: sweep_points.to_json(p) for kind, p in self.series.items()}}

    def rows(self) -> list[Record]:
        """One row a size, as ``hpcpar proposal --csv``."""
        return flat([{"scaling": kind, **row} for kind, each in self.to_json()["scaling"].items()
                     for row in each["points"]])

    def plot(self, path: str | None = None) -> Any:
        """Draws the scaling, into the file `path` if given; returns the figure."""
        unit = f"{self.chosen.prediction.processor}s"
        return finish(pyplot(), scaling_figure(self.series, unit), path, DPI)

    def save(self, path: str) -> None:
        """Writes the page; Markdown and LaTeX have the picture in a file beside it."""
        form, picture, notes = page_format(path), "", [*self.notes]
        PAGE.check(path)
        try:
            pyplot()
        except InputError as err:
            notes.append(f"No picture: {err}.")
        else:
            picture = self._picture(picture_beside(path))
        parts = page(self.campaign, self.chosen, self.series, picture, notes)
        write_text(path, form.page(parts), "page")
        for line in (*(f"note: {note}" for note in notes), f"wrote {path}"):
            say(line)

    def _picture(self, path: str) -> str:
        """Draws the scaling into a file and returns its name; without a path, returns SVG."""
        if path:
            self.plot(path)
            return os.path.basename(path)
        return "<svg" + svg(self.plot()).decode().partition("<svg")[2]


def picture_beside(path: str) -> str:
    """The file of a page's picture, checked as an output; empty if the page contains it."""
    suffix = page_format(path).beside
    beside = suffix and f"{os.path.splitext(path)[0]}-scaling{suffix}"
    if beside:
        PICTURE.check(beside)
    return beside


def make_proposal(asked: ProposalArguments) -> ProposalResult:
    """Prices a campaign and its scaling; what a sweep measured stands beside the predictions."""
    swept = {study.kind: study for study in map(studies.load, map(os.path.abspath, asked.sweep))}
    if swept:
        asked = _as_swept(asked, swept)
    kinds = [kind for kind, name in _BATCH.items() if getattr(asked, name) is not None]
    if not kinds:
        raise InputError("--batch is missing; give --batch (strong scaling), --batch-per-rank "
                         "(weak scaling), both, or --sweep FOLDER")
    series: dict[str, tuple[Point, ...]] = {}
    notes: list[str] = []
    for kind in kinds:
        points = _swept(swept[kind], asked) if kind in swept else _priced(asked, kind)
        series[kind] = _fastest(points)
        sizes = {p.ranks for p in series[kind]}
        notes += [f"{kind.capitalize()} scaling on {p.ranks} ranks cannot run: {p.reason}."
                  for p in points if p.ranks not in sizes]
        if not sizes:
            raise InputError(notes[-1])
    if any(p.batches is None for p in series[kinds[0]]):
        raise InputError(f"a proposal {NO_EPOCH}")
    point = _production(series[kinds[0]], asked.production)
    again = _price(replace(asked, ranks=point.ranks), kinds[0])
    chosen = [c for c in again.candidates if c.strategy == point.chosen]
    if not chosen:
        raise InputError(f"the sweep took {point.chosen} on {point.ranks} ranks, this version of "
                         "hpcpar plans otherwise: repeat the sweep in another folder")
    return ProposalResult(series, _campaign(asked, point), chosen[0], tuple(notes))


proposal = by_keyword(ProposalArguments, make_proposal)


def _as_swept(asked: ProposalArguments, swept: Mapping[str, Study]) -> ProposalArguments:
    """The request with the network, machine and plans of sweeps."""
    first, *others = swept.values()
    if len(swept) < len(asked.sweep) or any(
            (s.spec, s.machine, s.planning) != (first.spec, first.machine, first.planning)
            for s in others):
        raise InputError("--sweep takes one sweep of strong and one of weak scaling, of the same "
                         "network, machine and options; leave out the others")
    batches: dict[str, Any] = {_BATCH[kind]: study.batch for kind, study in swept.items()}
    refuse("{} has no effect with --sweep: the sweep fixes it; drop one of them", asked, (
        "network", "machine", "input", "classes", "loss", "label_smoothing", "load", "gather",
        "overlap", "precision", "bucket", "measured", *batches,
        *["ranks"] * (asked.batch is asked.batch_per_rank is None),
        *["strategy"] * (asked.strategy != StrategyArguments.strategy)))
    strategies = [name for study in swept.values() for name in study.strategies]
    plans: dict[str, Any] = {"bucket" if name == "bucket_bytes" else name: value
                             for name, value in first.planning.items()}
    return replace(asked, network=first.spec.build(), machine=first.machine, strategy=strategies,
                   samples=asked.samples or first.epoch_samples, **plans, **batches)


def _price(asked: ProposalArguments, kind: str) -> PredictResult:
    given = {f.name: getattr(asked, f.name) for f in fields(StrategyArguments)}
    other = {name: None for each, name in _BATCH.items() if each != kind}
    return price_plans(PredictArguments(**given | other))


def _priced(asked: ProposalArguments, kind: str) -> list[Point]:
    """The predicted choice on each number of ranks; sizes that cannot run have a reason in place of
    a prediction.
    """
    result = _price(asked, kind)
    return [*map(_point, result.choices.values()), *(
        Point("", "", "", case["ranks"], 0, 0, 0, folder.SKIPPED, case["reason"])
        for case in result.skipped)]


def _point(c: Candidate) -> Point:
    p = c.prediction
    needs = f"needs {amount(p.memory_bytes)} of {amount(p.memory_limit_bytes)} of memory"
    return Point(f"{p.strategy}-p{p.ranks}-b{p.batch}", "", p.strategy, p.ranks, p.batch,
                 nodes(c.task.machine, p.ranks), None if p.samples is None else p.samples / p.batch,
                 folder.PLANNED if p.fits else folder.SKIPPED, "" if p.fits else needs,
                 predicted=IterationParts.predicted(p) if p.fits else None, trust=p.trust,
                 memory_bytes=p.memory_bytes)


def _swept(study: Study, asked: ProposalArguments) -> list[Point]:
    """The points of a sweep, with the epoch of the request."""
    states = {case: folder.read_status(study.folder(case)) for case in study.cases()}
    return [replace(p, strategy="", batches=asked.samples and asked.samples / p.batch,
                    measured=None if p.simulated else p.measured)
            for p in points_of(study, {case: s for case, s in states.items() if s})]


def _iteration_s(p: Point) -> float:
    parts = p.measured or p.predicted
    return math.inf if parts is None else parts.iteration_s


def _fastest(points: Sequence[Point]) -> tuple[Point, ...]:
    """The fastest point of every size, a measured one if there is any."""
    known = [p for p in points if p.predicted]
    known.sort(key=lambda p: (p.ranks, p.known == "predicted", _iteration_s(p)))
    return tuple(next(same) for _, same in itertools.groupby(known, lambda p: p.ranks))


def _production(points: Sequence[Point], size: int | None) -> Point:
    """The point of the production runs."""
    def suits(p: Point) -> bool:
        share = efficiency(p, base(points, p.known), p.known) or 0.0
        return share >= LEAST_EFFICIENCY if size is None else p.ranks == size

    found = sorted(filter(suits, points), key=lambda p: p.batch / _iteration_s(p))
    if not found:
        raise InputError(f"--production {size} is not a size that can run "
                         f"({', '.join(str(p.ranks) for p in points)}); add it to --ranks")
    fastest = found[-1]
    speeds = [predicted_speedup(p, fastest) for p in found]
    equal = [p for p, speed in zip(found, speeds, strict=True) if speed and speed.as_good
             and p.known == fastest.known == "predicted"]
    return min(equal, key=lambda p: p.ranks, default=fastest)


def _campaign(asked: ProposalArguments, point: Point) -> dict[str, Any]:
    """The production runs, their time and their node-hours."""
    run_hours = asked.epochs * (point.node_hours(point.known) or 0.0)
    return {"ranks": point.ranks, "nodes": point.nodes, "batch": point.batch,
            "strategy": point.chosen, "times": point.known, "epochs": asked.epochs,
            "run_s": asked.epochs * (point.epoch_s(point.known) or 0.0),
            "run_node_hours": run_hours, "runs": asked.runs, "reserve": asked.reserve,
            "node_hours": asked.runs * run_hours * (1 + asked.reserve)}
