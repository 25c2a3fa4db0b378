"""Running cases: for each group jobs that interleave a calibration and the cases."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.unseen.cases import FAST, CaseRun, Group, Place, Result, free_bytes, possible
from bench.unseen.jobs import ROOT, SCRIPT, Case, Failed, Job, output
from hpcpar.api.sources import plan_and_machine
from hpcpar.calibrate.calibrate import ROUNDS
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.prediction.price import price
from hpcpar.process.child import command as program
from hpcpar.report.compare import compare_one
from hpcpar.report.rows import Row
from hpcpar.report.tables import seconds
from hpcpar.search import auto
from hpcpar.simulation.simulate import Simulator
from hpcpar.train import record_file
from hpcpar.train.run_record import RunRecord

#: Batches whose compute steps are measured, over the cases'.
SEEN = (0.5, 2.0)
#: In every round a case runs for about so long (s), a part of it after each visit of one of its
#: plans, within limits of iterations.
SLICE_S, FEWEST, MOST = 0.8, 2, 50
#: Part of the memory for plans that the plans of one job may take.
ROOM = 0.4
#: Iterations of an epoch: what a rank does at an epoch's end delays the next iteration.
EPOCH = 16
#: For the estimate: a job's start and end (s), a calibration of the links (s), and a visit to a
#: plan's steps (s) and in iterations.
START_S, LINKS_S, VISIT_S, PROBES = 5.0, 20.0, 0.4, 3


class Bench:
    """Runs cases, and keeps what became of them.

    Parameters
    ----------
    folder : Path
        For the results, and what they are made of.
    launcher : sequence of str
        The words before ``-n`` where ranks are to be started in one host's memory.
    jobs : int
        Jobs for each case.
    """

    def __init__(self, folder: Path, launcher: Sequence[str], jobs: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.launcher, self.jobs = folder.resolve(), launcher, jobs
        self.file = self.folder / "results.json"
        rows = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.results = {id: Result.load(row) for id, row in rows.items()}

    def missing(self, group: Group) -> list[str]:
        """Strategies that are not done."""
        return [s for s in group.strategies if self._done(group, s) < self.jobs]

    def _done(self, group: Group, strategy: str) -> int:
        """Jobs that a case has behind it; all of them where it cannot be run."""
        known = self._known(group, strategy)
        return self.jobs if known.note and not known.note.startswith("failed") else len(known.runs)

    def _known(self, group: Group, strategy: str) -> Result:
        """The result of a case so far."""
        return self.results.get(group.id(strategy)) or self._result(group, strategy)

    def _keep(self, group: Group, result: Result) -> None:
        self.results[group.id(result.strategy)] = result
        text = json.dumps({id: asdict(r) for id, r in self.results.items()}, indent=1) + "\n"
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)
        what = result.note
        if result.runs:
            last = result.runs[-1]
            what = (f"job {len(result.runs)} of {self.jobs}: unseen {seconds(last.predicted_s)}, "
                    f"steps known {seconds(last.known_s)}, "
                    f"measured {seconds(last.measured_s)}")
        print(f"{group.name} {result.strategy}: {what}", file=sys.stderr, flush=True)

    def _job(self, group: Group, *words: str) -> None:
        start = [str(SCRIPT), "run"] if group.place.mbit else self.launcher
        output(*start, "-n", str(group.ranks), *words)

    def run(self, group: Group) -> None:
        """The cases of a group that have no result yet."""
        here, network = self.folder / group.name, group.spec.build()
        here.mkdir(exist_ok=True)
        try:
            if group.place.mbit:
                output(str(SCRIPT), "up", str(group.ranks), str(group.place.mbit))
            data = self._data(group)
            chosen = self._chosen(group, network, here)
            taken = chosen["auto"].strategy if "auto" in chosen else ""
            if taken in chosen:
                del chosen["auto"]  # the same is not run twice
            for number in range(self.jobs):
                todo = {s: chosen[s] for s in self.missing(group) if s in chosen
                        and self._done(group, s) == number}
                for part, some in enumerate(_fitting(network, todo, group)):
                    self._interleaved(group, network, here, data, some, f"{number}-{part}")
            if taken in chosen:
                self._keep(group,
                           self._result(group, "auto", plan=taken,
                                        runs=self.results[group.id(taken)].runs))
        except Failed as err:
            for strategy in self.missing(group):
                self._keep(group, replace(self._known(group, strategy), note=f"failed: {err}"))

    def _chosen(self, group: Group, network: Network, here: Path) -> dict[str, Plan]:
        """The cases' plans: chosen on the machine as a calibration found it that knows the steps of
        all of them, and kept.
        """
        paths = {s: here / f"{s.replace(':', '-')}.json" for s in group.strategies}
        lacking = [s for s in self.missing(group) if not paths[s].exists()]
        if lacking:
            rough, own = group.place.rough(), []
            for strategy in group.strategies:
                with suppress(InputError):
                    if strategy != "auto":
                        own.append(possible(group, network, rough, strategy, group.batch))
            names = [str(here / f"first{i}.json") for i in range(len(own))]
            for plan, name in zip(own, names, strict=True):
                plans.save(plan, name)
            self._job(group, *program(), "calibrate", "--for", *names, "-o",
                      str(here / "first.toml"))
            known = files.load(str(here / "first.toml"))
            for strategy in lacking:
                try:
                    plans.save(possible(group, network, known, strategy, group.batch),
                               str(paths[strategy]))
                except InputError as err:
                    self._keep(group, self._result(group, strategy, note=str(err)))
        return {s: plans.load(str(path)) for s, path in paths.items() if path.exists()}

    def _interleaved(self, group: Group, network: Network, here: Path, data: Path,
                  todo: dict[str, Plan], name: str) -> None:
        """One job more of these cases."""
        print(f"{group.name}: a calibration and {', '.join(todo)}, interleaved", file=sys.stderr,
              flush=True)
        first = files.load(str(here / "first.toml"))
        load, date = round(os.getloadavg()[0], 2), datetime.now().isoformat(timespec="minutes")
        cases = []
        for strategy, plan in todo.items():
            file, seen = strategy.replace(":", "-"), []
            for factor in SEEN:
                # what `auto` takes at another batch is another plan; and not every batch can be run
                with suppress(InputError):
                    if strategy != "auto":
                        other = possible(group, network, group.place.rough(), strategy,
                                         max(1, round(factor * group.batch)))
                        seen.append(str(here / f"{file}-{other.batch}.json"))
                        plans.save(other, seen[-1])
            steps = math.ceil(SLICE_S / (1 + len(seen))
                              / float(price(network, plan, first).iteration_s))
            cases.append(Case(str(here / f"{file}.json"), seen, min(MOST, max(FEWEST, steps)),
                              str(here / f"{file}-{name}.h5")))
        job = Job(cases, str(data), str(here / f"machine{name}.toml"), bool(group.place.mbit),
                  str(here / f"wire{name}.json"))
        job.save(here / f"job{name}.json")
        self._job(group, sys.executable, str(ROOT / "bench" / "unseen" / "interleaved.py"),
                  str(here / f"job{name}.json"))
        for strategy, run in zip(todo, _case_runs(network, job, load, date), strict=True):
            out = self._known(group, strategy)
            chosen = todo[strategy].strategy if strategy == "auto" else ""
            self._keep(group, replace(out, note="", plan=chosen, runs=[*out.runs, run]))

    @staticmethod
    def _result(group: Group, strategy: str, **more: Any) -> Result:
        return Result(group.place.name, group.network, group.image, group.batch, group.ranks,
                      strategy, **more)

    def _data(self, group: Group) -> Path:
        image, samples = "x".join(map(str, group.image)), EPOCH * group.batch
        path = self.folder / f"{image}-{group.spec.classes}-{samples}.h5"
        if not path.exists():
            output(*program(), "data", "synthetic", str(path), "--input", image, "--classes",
                   str(group.spec.classes),
                   "--samples", str(samples))
        return path

    def again(self, group: Group) -> None:
        """Predict what was run of a group again, from the calibrations that it was predicted from.
        """
        here, network = self.folder / group.name, group.spec.build()
        found = {s: self.results[group.id(s)] for s in group.strategies
                 if group.id(s) in self.results}
        for path in sorted(here.glob("job*.json")):
            job, number = Job.load(path), int(path.stem[3:].split("-")[0])
            if not Path(job.machine).exists():
                continue  # it was stopped
            by_plan = {str(here / f"{s.replace(':', '-')}.json"): result
                       for s, result in found.items()}
            for case, run in zip(job.cases, _case_runs(network, job, 0.0, ""), strict=True):
                result = by_plan.get(case.plan)
                if result is not None and number < len(result.runs):
                    old = result.runs[number]
                    result.runs[number] = replace(run, load=old.load, date=old.date)
                    self._keep(group, result)
        if "auto" in found and found["auto"].plan in found:
            self._keep(group, replace(found["auto"], runs=found[found["auto"].plan].runs))


def _fitting(network: Network, todo: dict[str, Plan], group: Group) -> Iterator[dict[str, Plan]]:
    """Some plans at a time, whose ranks all have room in memory together, beside a calibration and
    images.
    """
    some: dict[str, Plan] = {}
    left = room = ROOM * free_bytes()
    for strategy, plan in todo.items():
        needs = price(network, plan, plan_and_machine(plan, None)[1]).memory_bytes * group.ranks
        if some and needs > left:
            yield some
            some, left = {}, room
        some[strategy], left = plan, left - needs
    if some:
        yield some


def _keys(network: Network, found: Iterable[Plan]) -> set[str]:
    """Keys of plans' compute steps that a machine's table has."""
    return {key for plan in found for key in WorkIndex(network, plan,
                                                       schedule_for(network, plan)).keys}


def _only(machine: Machine, network: Network, seen: Iterable[Plan]) -> Machine:
    """A machine that knows the compute steps of these plans alone."""
    keys = _keys(network, seen)
    return replace(machine, compute={key: s for key, s in machine.compute.items() if key in keys})


def _case_runs(network: Network, job: Job, load: float, date: str) -> Iterator[CaseRun]:
    """The runs of a job beside both predictions."""
    known = files.load(job.machine)
    unseen = _only(known, network, [plans.load(path) for case in job.cases for path in case.seen])
    wire = json.loads(Path(job.wire).read_text())
    for case in job.cases:
        run, plan = record_file.read(case.record), plans.load(case.plan)
        sent, planned = wire[case.plan], int(run.sent_bytes.sum())
        ratio = statistics.median(sent) / planned if sent and planned else None
        yield _case_run(run, network, plan, unseen, known, ratio, load, date)


def _case_run(
    run: RunRecord, network: Network, plan: Plan, unseen: Machine, known: Machine,
    wire_ratio: float | None, load: float, date: str
) -> CaseRun:
    """A run beside both predictions."""
    found = [price(network, plan, machine, samples=run.samples) for machine in (unseen, known)]
    row, known_row = (compare_one(replace(run, prediction=prediction.to_json(steps=True)))
                      for prediction in found)
    return CaseRun(
        row.iteration.measured_s, row.iteration.predicted_s or 0.0, known_row.iteration.predicted_s
        or 0.0,
        found[0].measured_compute, _causes(row), _causes(known_row), row.compared,
        wire_ratio, load, date, row.node.shared, row.inside, known_row.inside,
        Simulator(network, plan, unseen).play().mean_s,
    )


def _causes(row: Row) -> dict[str, float]:
    out: dict[str, float] = {}
    for term in row.terms:
        out[term.cause] = out.get(term.cause, 0.0) + term.excess_s
    return out


@contextmanager
def hosts(found: Iterable[Group]) -> Iterator[None]:
    """Hosts for the groups that need them; their links are set when a group comes."""
    if not any(group.place.mbit for group in found):
        yield
        return
    with suppress(Failed):
        Place(FAST).sent_bytes(1)
        raise SystemExit(f"hosts are up already; when nobody needs them any more: {SCRIPT} down")
    try:
        yield
    finally:
        output(str(SCRIPT), "down")


def estimate_s(bench: Bench, todo: Sequence[Group]) -> float:
    """How long the groups will take, from first estimates of data parallelism alone."""
    total, cores = 0.0, len(os.sched_getaffinity(0))
    for group in todo:
        machine = group.place.rough()
        found = auto.price_named(group.spec.build(), group.spec, "data", group.ranks, group.batch,
                                 machine).prediction
        # strategies other than data compute more, and ranks share cores
        work_s = 1.5 * found.compute_s * max(1.0, group.ranks / cores)
        step_s, count = work_s + found.exposed_communication_s, len(bench.missing(group))
        visits_s = ROUNDS * (VISIT_S + PROBES * work_s) * (count + len(SEEN)
                                                           * len(group.strategies))
        visits = 1 + len(SEEN)
        runs_s = ROUNDS * count * visits * min(MOST,
                                               max(FEWEST, SLICE_S / visits / step_s)) * step_s
        total += bench.jobs * (START_S + LINKS_S + visits_s + runs_s)
        # the calibration that plans are chosen from
        total += START_S + LINKS_S + ROUNDS * (VISIT_S + PROBES * work_s) * count
    return total
