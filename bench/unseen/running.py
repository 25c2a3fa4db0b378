"""Running cases, one after the other: a calibration for each group, predictions from it, then the iterations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.unseen.cases import FAST, Group, Place, Result, Turn, possible
from bench.unseen.jobs import SCRIPT, Failed, output
from hpcpar.cost.choose import schedule_for
from hpcpar.cost.price import price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.report.compare import compare_one
from hpcpar.report.rows import Row
from hpcpar.report.tables import seconds
from hpcpar.search import auto
from hpcpar.sweep.scripts import program
from hpcpar.train import record
from hpcpar.train.record import RunRecord
from hpcpar.train.worksteps import WorkSteps

#: Batches whose compute steps are measured, over the cases'.
SEEN = (0.5, 2.0)
#: A run of a round lasts about so long (s), within limits of iterations.
RUN_S, FEWEST, MOST = 2.5, 8, 200
#: Iterations of an epoch: what a rank does at an epoch's end makes it late for the next iteration.
EPOCH = 16
#: A short run, whose bytes and those of a long one differ by iterations alone.
SHORT = 2
#: For the estimate: a job's start and end (s), a calibration of the links (s), and iterations that measuring a plan's steps takes.
START_S, LINKS_S, PROBES = 3.0, 15.0, 15


class Bench:
    """Runs cases, and keeps what became of them.

    Parameters
    ----------
    folder : Path
        For the results, and what they are made of.
    launcher : sequence of str
        The words before ``-n`` where ranks are to be started in one host's memory.
    rounds : int
        Calibrations and runs take turns so often: the speed of a shared machine changes by a tenth within minutes.
    """

    def __init__(self, folder: Path, launcher: Sequence[str], rounds: int) -> None:
        self.folder, self.launcher, self.rounds = folder, launcher, rounds
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "results.json"
        rows = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.results = {id: Result.load(row) for id, row in rows.items()}

    def missing(self, group: Group) -> list[str]:
        """Strategies that are not done."""
        return [s for s in group.strategies if self._rounds(group, s) < self.rounds]

    def _rounds(self, group: Group, strategy: str) -> int:
        """Rounds that a case has behind it; all of them where it cannot be run."""
        known = self.results.get(group.id(strategy))
        return 0 if known is None or known.note.startswith("failed") else self.rounds if known.note else len(known.turns)

    def _keep(self, group: Group, result: Result) -> None:
        self.results[group.id(result.strategy)] = result
        text = json.dumps({id: asdict(r) for id, r in self.results.items()}, indent=1) + "\n"
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)
        what = result.note
        if result.turns:
            last = result.turns[-1]
            what = (f"round {len(result.turns)} of {self.rounds}: unseen {seconds(last.predicted_s)}, steps known {seconds(last.known_s)}, "
                    f"measured {seconds(last.measured_s)}")
        print(f"{group.name} {result.strategy}: {what}", file=sys.stderr, flush=True)

    def _job(self, group: Group, *words: str) -> None:
        start = [str(SCRIPT), "run"] if group.place.mbit else self.launcher
        output(*start, "-n", str(group.ranks), *program(), *words)

    def run(self, group: Group) -> None:
        """The cases of a group that have no result yet."""
        here, network, missing = self.folder / group.name, group.spec.build(), self.missing(group)
        here.mkdir(exist_ok=True)
        rough, own = group.place.rough(), {}
        for strategy in group.strategies:
            if strategy != "auto":
                try:
                    own[strategy] = possible(group, network, rough, strategy, group.batch)
                except InputError as err:
                    if strategy in missing:
                        self._keep(group, self._result(group, strategy, note=str(err)))
        try:
            if group.place.mbit:
                output(str(SCRIPT), "up", str(group.ranks), str(group.place.mbit))
            data = self._data(group)
            for number in range(self.rounds):
                todo = [s for s in self.missing(group) if self._rounds(group, s) == number]
                if todo:
                    unseen, known = self._calibrated(group, network, here, rough, own, number)
                    for strategy in todo:
                        try:
                            self._keep(group, self._case(group, network, strategy, here, data, unseen, known))
                        except Failed as err:
                            self._keep(group, self._result(group, strategy, note=f"failed: {err}"))
        except Failed as err:
            for strategy in self.missing(group):
                self._keep(group, self._result(group, strategy, note=f"failed: {err}"))

    @staticmethod
    def _result(group: Group, strategy: str, **more: Any) -> Result:
        return Result(group.place.name, group.network, group.image, group.batch, group.ranks, strategy, **more)

    def _data(self, group: Group) -> Path:
        image, samples = "x".join(map(str, group.image)), EPOCH * group.batch
        path = self.folder / f"{image}-{group.spec.classes}-{samples}.h5"
        if not path.exists():
            output(*program(), "data", "synthetic", str(path), "--input", image, "--classes", str(group.spec.classes),
                   "--samples", str(samples))
        return path

    def _calibrated(
        self, group: Group, network: Network, here: Path, rough: Machine, own: dict[str, Plan], number: int
    ) -> tuple[Machine, Machine]:
        """The machine without and with the compute steps of the cases' own plans, as a round's calibration finds it."""
        seen: list[Plan] = []
        for factor in SEEN:
            for strategy in own:
                try:
                    seen.append(possible(group, network, rough, strategy, max(1, round(factor * group.batch))))
                except InputError:
                    continue  # the case's own batch can be run, this one cannot
        path = here / f"machine{number}.toml"
        known = files.load(str(path)) if path.exists() else rough
        # strategies may have been added since
        if not _keys(network, (*seen, *own.values())) <= known.compute.keys():
            names = []
            for i, plan in enumerate((*seen, *own.values())):
                names.append(str(here / f"steps{i}.json"))
                plans.save(plan, names[-1])
            self._job(group, "calibrate", "--for", *names, "-o", str(path))
            known = files.load(str(path))
        unseen = _only(known, network, seen)
        files.save(unseen, str(here / "unseen.toml"))
        return unseen, known

    def _case(self, group: Group, network: Network, strategy: str, here: Path, data: Path, unseen: Machine, known: Machine) -> Result:
        """One round more of a case."""
        out = self.results.get(group.id(strategy))
        if out is None or out.note:
            out = self._result(group, strategy)
        name = strategy.replace(":", "-")
        file, path = here / f"{name}.json", here / f"{name}-{len(out.turns)}.h5"
        if not out.turns:
            # what `auto` takes in the first round is what all rounds run
            try:
                plan = possible(group, network, known, strategy, group.batch)
            except InputError as err:
                out.note = str(err)
                return out
            plans.save(plan, str(file))
            if strategy == "auto":
                out.plan = plan.strategy
        other = self.results.get(group.id(out.plan))
        if out.plan in group.strategies and other is not None and len(other.turns) > len(out.turns):
            out.turns.append(other.turns[len(out.turns)])
            return out
        plan = plans.load(str(file))
        load, date = round(os.getloadavg()[0], 2), datetime.now().isoformat(timespec="minutes")
        steps = int(min(MOST, max(FEWEST, RUN_S / float(price(network, plan, known).iteration_s))))

        def train(count: int) -> None:
            self._job(group, "run", "--plan", str(file), "--machine", str(here / "unseen.toml"), "--data", str(data), "--steps", str(count),
                      "--rate", "0.0001", "--out", str(path))

        sent = 0.0
        if group.place.mbit:
            begin = group.place.sent_bytes(group.ranks)
            train(SHORT)
            middle = group.place.sent_bytes(group.ranks)
            train(steps)
            sent = (group.place.sent_bytes(group.ranks) - middle - (middle - begin)) / (steps - SHORT)
        else:
            train(steps)
        run = record.read(str(path))
        planned = int(run.sent_bytes.sum())
        out.turns.append(_turn(run, network, plan, unseen, known, sent / planned if sent and planned else None, load, date))
        return out

    def again(self, group: Group) -> None:
        """Predict what was run of a group again, from the calibrations that it was predicted from."""
        here, network = self.folder / group.name, group.spec.build()
        seen = [p for p in map(plans.load, map(str, here.glob("steps*.json"))) if p.batch != group.batch]
        for strategy in group.strategies:
            result = self.results.get(group.id(strategy))
            if result is None or not result.turns:
                continue
            for number, turn in enumerate(result.turns):
                # what `auto` took may have been run as one of the others alone
                names = [name.replace(":", "-") for name in (strategy, result.plan)]
                name = next((name for name in names if (here / f"{name}-{number}.h5").exists()), None)
                if name is None:
                    raise SystemExit(f"{here} has no record of round {number + 1} of {strategy}; --again needs what runs left there")
                plan, run = plans.load(str(here / f"{name}.json")), record.read(str(here / f"{name}-{number}.h5"))
                known = files.load(str(here / f"machine{number}.toml"))
                result.turns[number] = _turn(run, network, plan, _only(known, network, seen), known, turn.wire_ratio, turn.load, turn.date)
            self._keep(group, result)


def _keys(network: Network, found: Iterable[Plan]) -> set[str]:
    """What a machine's table has of plans' compute steps."""
    return {key for plan in found for key in WorkSteps(network, plan, schedule_for(network, plan)).keys}


def _only(machine: Machine, network: Network, seen: Iterable[Plan]) -> Machine:
    """A machine that knows the compute steps of these plans alone."""
    keys = _keys(network, seen)
    return replace(machine, compute={key: s for key, s in machine.compute.items() if key in keys})


def _turn(
    run: RunRecord, network: Network, plan: Plan, unseen: Machine, known: Machine, wire_ratio: float | None, load: float, date: str
) -> Turn:
    """A run beside both predictions."""
    found = [price(network, plan, machine, samples=run.samples).to_json(steps=True) for machine in (unseen, known)]
    row, known_row = (compare_one(replace(run, prediction=prediction)) for prediction in found)
    return Turn(
        row.iteration.measured_s, row.iteration.predicted_s or 0.0, known_row.iteration.predicted_s or 0.0,
        float(found[0]["measured_compute"]), _causes(row), _causes(known_row), row.compared, wire_ratio, load, date,
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
        found = auto.price_named(group.spec.build(), group.spec, "data", group.ranks, group.batch, machine).prediction
        # strategies other than data compute more, and ranks share cores
        work_s = 1.5 * found.compute_s * max(1.0, group.ranks / cores)
        step_s, count = work_s + found.exposed_communication_s, len(bench.missing(group))
        lasts = min(MOST, max(FEWEST, RUN_S / step_s)) * step_s
        total += LINKS_S + (1 + sum(SEEN)) * len(group.strategies) * PROBES * work_s
        total += count * (START_S + lasts) * (2 if group.place.mbit else 1)
    return bench.rounds * total
