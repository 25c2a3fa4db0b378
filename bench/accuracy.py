"""How far predictions are off: iterations of cases that the calibration did not see, in shared memory and on a shaped network.

Run: ``python bench/accuracy.py`` (LeNet-5, AlexNet, VGG-16 and ResNet-50 at reduced image size, every strategy that can run, on 1, 2, 4
and 8 ranks; how long it will take is printed first), ``--quick`` for a few cases, ``--network shaped`` for hosts that are joined by
shaped links besides (``tests/cluster/network.sh``; root only). A rank has one BLAS thread. Finished cases are kept in the folder's
``results.json`` and not run again; those that failed are.

For every network and number of ranks ``hpcpar calibrate`` measures, on as many ranks, the links, the collectives, the device's rates,
and the compute steps (alone, without messages) of every strategy at half and at twice the case's batch. From that a case is predicted,
at its own batch, which makes other local shapes. No iteration of any case, and nothing of what ranks do to each other in one, is part of
the calibration. What its table has no time for (all that depends on the number of samples) lies on straight lines through what it has.

Predictions are of two kinds:

* *unseen*: from that calibration alone;
* *steps known*: the same links and rates, but the compute steps of the case's own plan were measured too, alone, as a user has them
  measured with ``--for plan.json``. What is still off is not the compute steps' model.

``auto`` is chosen with the steps known. Measured is the median over the iterations of one run, each as long as its slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from hpcpar.cost.choose import schedule_for  # noqa: E402
from hpcpar.cost.price import price  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Level, Machine  # noqa: E402
from hpcpar.network.builtin import defaults  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.plan import plan as plans  # noqa: E402
from hpcpar.plan.plan import NetworkSpec, Plan  # noqa: E402
from hpcpar.plan.strategies import named  # noqa: E402
from hpcpar.report.compare import compare_one  # noqa: E402
from hpcpar.report.rows import Row  # noqa: E402
from hpcpar.report.tables import amount, seconds  # noqa: E402
from hpcpar.search import auto  # noqa: E402
from hpcpar.sweep.local import mpiexec  # noqa: E402
from hpcpar.sweep.scripts import program  # noqa: E402
from hpcpar.train import record  # noqa: E402
from hpcpar.train.supported import require, runs  # noqa: E402
from hpcpar.train.worksteps import WorkSteps  # noqa: E402

#: Batches whose compute steps are measured, over the cases'.
SEEN = (0.5, 2.0)
#: Part of the free memory that a plan may take on all ranks together.
MEMORY_SHARE = 0.7
#: A run lasts about so long (s), within limits of iterations.
RUN_S, FEWEST, MOST = 4.0, 12, 200
#: A short run, whose bytes and those of a long one differ by iterations alone.
SHORT = 2
#: For the estimate: a job's start and end (s), a calibration of the links (s), and iterations that measuring a plan's steps takes.
START_S, LINKS_S, PROBES = 3.0, 15.0, 15
#: Seconds after which a job is given up.
LIMIT_S = 1800.0
SCRIPT = ROOT / "tests" / "cluster" / "network.sh"


@dataclass(frozen=True)
class Place:
    """Where ranks run; without links' rate in the memory of one host."""

    mbit: int = 0

    @property
    def name(self) -> str:
        return f"{self.mbit} Mbit/s" if self.mbit else "memory"

    def rough(self) -> Machine:
        """What a first estimate of times takes it for."""
        machine = files.load("local")
        return replace(machine, levels=(Level("network", 0, 1e-4, 8e-6 / self.mbit),)) if self.mbit else machine

    def sent_bytes(self, ranks: int) -> int:
        """Bytes that all hosts have sent so far, as their interfaces count them."""
        return sum(int(_output(str(SCRIPT), "bytes", str(host))) for host in range(1, ranks + 1))


@dataclass(frozen=True)
class Group:
    """The cases of a network on a number of ranks: they share a calibration."""

    place: Place
    network: str
    image: tuple[int, ...]
    batch: int
    ranks: int
    strategies: tuple[str, ...]

    @property
    def name(self) -> str:
        image = "x".join(map(str, self.image))
        return f"{self.place.name} {self.network} {image} b{self.batch} p{self.ranks}".replace("/", "").replace(" ", "-")

    def id(self, strategy: str) -> str:
        return f"{self.name}-{strategy}"

    @property
    def spec(self) -> NetworkSpec:
        return NetworkSpec(self.network, self.image, defaults(self.network)[1])


@dataclass
class Result:
    """What became of a case; `note` says why there is no time.

    Attributes
    ----------
    plan : str
        The strategy that `auto` took; it was not run a second time where it is one of the others.
    table_part : float
        Part of the unseen prediction's computing that the calibrated table covers.
    causes, known_causes : dict
        Measured less predicted (s) by cause (`hpcpar.report.rows.Term`), of both predictions.
    wire_ratio : float or None
        Bytes that the interfaces sent over the schedule's.
    """

    place: str
    network: str
    image: tuple[int, ...]
    batch: int
    ranks: int
    strategy: str
    note: str = ""
    plan: str = ""
    measured_s: float = 0.0
    quartiles_s: tuple[float, float] = (0.0, 0.0)
    predicted_s: float = 0.0
    known_s: float = 0.0
    table_part: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)
    known_causes: dict[str, float] = field(default_factory=dict)
    iterations: int = 0
    wire_ratio: float | None = None
    load: float = 0.0
    date: str = ""

    @property
    def accuracy(self) -> float:
        return 1 - abs(self.predicted_s - self.measured_s) / self.measured_s

    @property
    def known_accuracy(self) -> float:
        return 1 - abs(self.known_s - self.measured_s) / self.measured_s


# -- what is run -------------------------------------------------------------------------------------------------------
#: Network -> image, batch. A network's smallest layers still have pixels for four ranks.
SIZES = {"lenet5": ((1, 28, 28), 64), "alexnet": ((3, 99, 99), 16), "vgg16": ((3, 64, 64), 8), "resnet50": ((3, 64, 64), 16)}
#: Of AlexNet's own layer sizes, on links that are slow for them: what one weird trick is about.
WIRE = ("data", "owt", "auto")
#: Links of the shaped networks (Mbit/s).
FAST, SLOW = 1000, 100


def groups(options: argparse.Namespace) -> list[Group]:
    """Everything that was asked for."""
    chosen, ranks = options.networks.split(","), [int(p) for p in options.ranks.split(",")]

    def group(place: Place, name: str, p: int) -> Group:
        # on one rank all strategies are the same
        every = (*named(p), "auto") if p > 1 else ("data",)
        return Group(place, name, *SIZES[name], p, tuple(options.strategies.split(",")) if options.strategies and p > 1 else every)

    out = [group(Place(), name, p) for p in ranks for name in chosen]
    if options.network == "shaped":
        # more ranks, or faster links between so many, are bound by the cores; on slow links only what has few weights
        places = [(Place(FAST if p <= 4 else SLOW), p) for p in ranks if p > 1]
        out += [group(place, name, p) for place, p in places for name in chosen if name == "lenet5" or place.mbit == FAST]
        if "alexnet" in chosen:
            out += [Group(place, "alexnet", (3, 227, 227), 16, p, WIRE) for place, p in places if place.mbit == FAST]
    return out


def possible(group: Group, network: Network, machine: Machine, strategy: str, batch: int) -> Plan:
    """The plan of a strategy.

    Raises
    ------
    InputError
        It cannot be run here.
    """
    where = (network, group.spec, group.ranks, batch, machine)
    if strategy == "auto":
        found = auto.best(*where, accept=runs(network), bucket_bytes=None)[0]
    else:
        found = auto.price_named(network, group.spec, strategy, *where[2:], bucket_bytes=None)
    require(network, found.plan)
    if found.parts > batch:
        raise InputError(f"a batch of {batch} cannot be cut into {found.parts} parts")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if found.memory_bytes * group.ranks > MEMORY_SHARE * free:
        raise InputError(f"needs {amount(found.memory_bytes)} on each rank, {amount(free)} are free")
    return found.plan


# -- running -----------------------------------------------------------------------------------------------------------
class Failed(Exception):
    """A job ended badly."""


def _output(*words: str, limit_s: float = LIMIT_S) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"given up after {limit_s:g} s") from None
    if done.returncode:
        raise Failed(f"status {done.returncode}: {(done.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return done.stdout


class Bench:
    """Runs cases, and keeps what became of them.

    Parameters
    ----------
    folder : Path
        For the results, and what they are made of.
    launcher : sequence of str
        The words before ``-n`` where ranks are to be started in one host's memory.
    """

    def __init__(self, folder: Path, launcher: Sequence[str]) -> None:
        self.folder, self.launcher = folder, launcher
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "results.json"
        rows = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.results = {id: Result(**(row | {"image": tuple(row["image"])})) for id, row in rows.items()}

    def missing(self, group: Group) -> list[str]:
        """Strategies without a result."""
        return [s for s in group.strategies if group.id(s) not in self.results or self.results[group.id(s)].note.startswith("failed")]

    def _keep(self, group: Group, result: Result) -> None:
        self.results[group.id(result.strategy)] = result
        text = json.dumps({id: asdict(r) for id, r in self.results.items()}, indent=1) + "\n"
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)
        what = result.note or (f"unseen {seconds(result.predicted_s)}, steps known {seconds(result.known_s)}, "
                               f"measured {seconds(result.measured_s)}")
        print(f"{group.name} {result.strategy}: {what}", file=sys.stderr, flush=True)

    def _job(self, group: Group, *words: str) -> None:
        start = [str(SCRIPT), "run"] if group.place.mbit else self.launcher
        _output(*start, "-n", str(group.ranks), *program(), *words)

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
                _output(str(SCRIPT), "up", str(group.ranks), str(group.place.mbit))
            unseen, known = self._calibrated(group, network, here, rough, own)
            data = self._data(group)
        except Failed as err:
            for strategy in self.missing(group):
                self._keep(group, self._result(group, strategy, note=f"failed: {err}"))
            return
        for strategy in self.missing(group):
            self._keep(group, self._case(group, network, strategy, here, data, unseen, known))

    @staticmethod
    def _result(group: Group, strategy: str, **more: Any) -> Result:
        return Result(group.place.name, group.network, group.image, group.batch, group.ranks, strategy, **more)

    def _data(self, group: Group) -> Path:
        image = "x".join(map(str, group.image))
        path = self.folder / f"{image}-{group.spec.classes}.h5"
        if not path.exists():
            _output(*program(), "data", "synthetic", str(path), "--input", image, "--classes", str(group.spec.classes), "--samples", "128")
        return path

    def _calibrated(self, group: Group, network: Network, here: Path, rough: Machine, own: dict[str, Plan]) -> tuple[Machine, Machine]:
        """The machine without and with the compute steps of the cases' own plans."""
        seen: list[Plan] = []
        for factor in SEEN:
            for strategy in own:
                try:
                    seen.append(possible(group, network, rough, strategy, max(1, round(factor * group.batch))))
                except InputError:
                    continue  # the case's own batch can be run, this one cannot
        path = here / "machine.toml"
        known = files.load(str(path)) if path.exists() else rough
        # strategies may have been added since
        if not _keys(network, (*seen, *own.values())) <= known.compute.keys():
            names = []
            for i, plan in enumerate((*seen, *own.values())):
                names.append(str(here / f"steps{i}.json"))
                plans.save(plan, names[-1])
            self._job(group, "calibrate", "--for", *names, "-o", str(path))
            known = files.load(str(path))
        keys = _keys(network, seen)
        unseen = replace(known, compute={key: s for key, s in known.compute.items() if key in keys})
        files.save(unseen, str(here / "unseen.toml"))
        return unseen, known

    def _case(self, group: Group, network: Network, strategy: str, here: Path, data: Path, unseen: Machine, known: Machine) -> Result:
        out = self._result(group, strategy, load=round(os.getloadavg()[0], 2), date=datetime.now().isoformat(timespec="minutes"))
        try:
            plan = possible(group, network, known, strategy, group.batch)
        except InputError as err:
            out.note = str(err)
            return out
        if strategy == "auto":
            out.plan = plan.strategy
            for name in group.strategies:
                other = self.results.get(group.id(name))
                if name == plan.strategy and other is not None and other.measured_s:
                    return replace(other, strategy="auto", plan=name)
        file, path = str(here / f"{strategy.replace(':', '-')}.json"), here / f"{strategy.replace(':', '-')}.h5"
        plans.save(plan, file)
        expected_s = float(price(network, plan, known).iteration_s)
        steps = int(min(MOST, max(FEWEST, RUN_S / expected_s)))

        def train(count: int) -> None:
            self._job(group, "run", "--plan", file, "--machine", str(here / "unseen.toml"), "--data", str(data), "--steps", str(count),
                      "--rate", "0.0001", "--out", str(path))

        try:
            if group.place.mbit:
                begin = group.place.sent_bytes(group.ranks)
                train(SHORT)
                middle = group.place.sent_bytes(group.ranks)
                train(steps)
                sent = (group.place.sent_bytes(group.ranks) - middle - (middle - begin)) / (steps - SHORT)
            else:
                train(steps)
        except Failed as err:
            out.note = f"failed: {err}"
            return out
        run = record.read(str(path))
        row = compare_one(run)
        known_row = compare_one(replace(run, prediction=price(network, plan, known, samples=run.samples).to_json(steps=True)))
        out.iterations, out.measured_s = row.compared, row.iteration.measured_s
        out.quartiles_s = (row.iteration.low_s or 0.0, row.iteration.high_s or 0.0)
        out.predicted_s, out.known_s = row.iteration.predicted_s or 0.0, known_row.iteration.predicted_s or 0.0
        out.table_part = float(run.prediction["measured_compute"])
        out.causes, out.known_causes = _causes(row), _causes(known_row)
        if group.place.mbit and (planned := int(run.sent_bytes.sum())):
            out.wire_ratio = sent / planned
        return out


def _keys(network: Network, found: Iterable[Plan]) -> set[str]:
    """What a machine's table has of plans' compute steps."""
    return {key for plan in found for key in WorkSteps(network, plan, schedule_for(network, plan)).keys}


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
        _output(str(SCRIPT), "down")


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
    return total


# -- what is printed ---------------------------------------------------------------------------------------------------
def tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's tau-b of predicted and measured times."""
    if len(pairs) < 3:
        return None
    from scipy.stats import kendalltau

    found = float(kendalltau(*zip(*pairs, strict=True)).statistic)
    return found if found == found else None


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def report(found: Sequence[Result]) -> str:
    """All tables."""
    done = [r for r in found if r.measured_s]
    parts = [table(
        ("where", "network", "P", "strategy", "measured", "unseen", "accuracy", "of the table", "steps known", "accuracy", "wire"),
        [(r.place, r.network, r.ranks, f"{r.strategy}: {r.plan}" if r.plan else r.strategy, seconds(r.measured_s),
          f"{r.predicted_s / r.measured_s:.2f} x", percent(r.accuracy), f"{r.table_part:.0%}", f"{r.known_s / r.measured_s:.2f} x",
          percent(r.known_accuracy), f"{r.wire_ratio:.3f}" if r.wire_ratio else "-") for r in done],
    )]
    together: dict[tuple[Any, ...], list[Result]] = {}
    for r in done:
        together.setdefault((r.place, r.network, r.image, r.ranks), []).append(r)
    parts.append(table(
        ("where", "network", "P", "cases", "unseen: mean", "least", "tau", "steps known: mean", "least", "tau", "auto over data: predicted",
         "measured"), [_summary(each) for each in together.values()],
    ))
    parts.append(table(
        ("where", "network", "P", "of the iterations: compute, unseen", "compute, steps known", "communication", "waiting", "bubble",
         "between"), [_off(each) for each in together.values()],
    ))
    if done:
        for name, values in (("unseen", [r.accuracy for r in done]), ("steps known", [r.known_accuracy for r in done])):
            parts.append(f"{name}: {len(done)} cases, mean accuracy {percent(statistics.mean(values))}, least {percent(min(values))}\n")
        loads = [r.load for r in done]
        parts.append(f"{min(r.date for r in done)} to {max(r.date for r in done)}, {len(os.sched_getaffinity(0))} cores, load average "
                     f"before a case {min(loads):.1f} to {max(loads):.1f}\n")
    parts += [f"not run: {r.place}, {r.network}, {r.ranks} ranks, {r.strategy}: {r.note}" for r in found if r.note]
    return "\n".join(parts)


def _summary(each: Sequence[Result]) -> tuple[object, ...]:
    first, by = each[0], {r.strategy: r for r in each}
    unseen, known = [r.accuracy for r in each], [r.known_accuracy for r in each]
    apart = [r for r in each if r.strategy != "auto"]
    orders = [tau([(value(r), r.measured_s) for r in apart]) for value in (lambda r: r.predicted_s, lambda r: r.known_s)]
    told = ["-" if t is None else f"{t:.2f}" for t in orders]
    faster = ("-", "-")
    if "auto" in by and "data" in by:
        a, d = by["auto"], by["data"]
        faster = (f"{d.known_s / a.known_s:.2f}", f"{d.measured_s / a.measured_s:.2f}")
    return (first.place, first.network, first.ranks, len(each), percent(statistics.mean(unseen)), percent(min(unseen)), told[0],
            percent(statistics.mean(known)), percent(min(known)), told[1], *faster)


def _off(each: Sequence[Result]) -> tuple[object, ...]:
    """Measured less predicted by cause, in the median case, over the measured iteration."""
    first = each[0]

    def part(known: bool, cause: str) -> str:
        values = [(r.known_causes if known else r.causes).get(cause, 0.0) / r.measured_s for r in each]
        return f"{100 * statistics.median(values):+.0f}%"

    return (first.place, first.network, first.ranks, part(False, "compute"),
            *(part(True, cause) for cause in ("compute", "communication", "waiting", "bubble", "between")))


# -- the command -------------------------------------------------------------------------------------------------------
def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="LeNet-5 on 1 and 2 ranks, four strategies: less than two minutes")
    parser.add_argument("--network", choices=("memory", "shaped"), default="memory", help="'shaped': also between hosts (default memory)")
    parser.add_argument("--ranks", default="", help="numbers of ranks (default 1,2,4,8)")
    parser.add_argument("--networks", default="", help=f"some of {', '.join(SIZES)} (default: all)")
    parser.add_argument("--strategies", default="", help="only these, on more than one rank (default: every named one, and auto)")
    parser.add_argument("--launcher", default="", metavar="WORDS", help="what starts ranks, before -n (default: this Python's mpiexec)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "accuracy", help="for results and records (default runs/accuracy)")
    parser.add_argument("--report", action="store_true", help="run nothing: print the tables of what is there")
    options = parser.parse_args(arguments)
    options.ranks = options.ranks or ("1,2" if options.quick else "1,2,4,8")
    options.networks = options.networks or ("lenet5" if options.quick else ",".join(SIZES))
    options.strategies = options.strategies or ("data,filter,owt,auto" if options.quick else "")
    wrong = set(options.networks.split(",")) - set(SIZES)
    if wrong:
        parser.error(f"--networks: {', '.join(sorted(wrong))} is none of {', '.join(SIZES)}")
    if not all(p.isdigit() and int(p) for p in options.ranks.split(",")):
        parser.error(f"--ranks {options.ranks}: give whole numbers, as in 1,2,4")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    bench, wanted = Bench(options.folder, options.launcher.split() or [mpiexec()]), groups(options)
    todo = [] if options.report else [group for group in wanted if bench.missing(group)]
    count, begin = sum(len(bench.missing(group)) for group in todo), time.perf_counter()
    if todo:
        print(f"{count} cases to run, about {max(1, round(estimate_s(bench, todo) / 60))} minutes", file=sys.stderr, flush=True)
    with hosts(todo):
        for group in todo:
            bench.run(group)
    if todo:
        print(f"{(time.perf_counter() - begin) / 60:.1f} minutes", file=sys.stderr)
    print(report([bench.results[group.id(s)] for group in wanted for s in group.strategies if group.id(s) in bench.results]))
    return int(any(bench.missing(group) for group in wanted))


if __name__ == "__main__":
    sys.exit(main())
