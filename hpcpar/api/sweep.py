"""A scaling study: plans, runs and reports many cases."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from hpcpar.api.keywords import by_keyword
from hpcpar.api.options import (
    AnchorOptions,
    LoadOptions,
    LossOptions,
    ModuleOptions,
    PlanningOptions,
    StepOptions,
    about_machine,
    about_network,
)
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import MachineLike, NetworkLike, machine_of, network_of
from hpcpar.comm.device_options import GraphOptions
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError, RunError, unknown
from hpcpar.io.files import make_folder, require_no_links
from hpcpar.machine.catalog import peak_warning
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.source import load_modules
from hpcpar.network.spec import NetworkSpec
from hpcpar.options.checks import OneOf, argument, names, path, positive, several_ranks, share
from hpcpar.options.fields import OUT, about, flag, option
from hpcpar.options.other_names import LAUNCHERS
from hpcpar.process.launchers import mpiexec
from hpcpar.report.pictures import finish, pyplot
from hpcpar.report.pictures.sweep_plots import DPI, PICTURES, figures
from hpcpar.report.sweep_points import Point
from hpcpar.report.tables.anchors import fitted
from hpcpar.report.tables.sweep_table import conclusion
from hpcpar.search.anchoring import fit
from hpcpar.search.scaling import nodes, weak_batch
from hpcpar.sweep import folder, local, planning, remote, report
from hpcpar.sweep import study as studies
from hpcpar.sweep.batch_options import BatchOptions, read, seconds
from hpcpar.sweep.data import data_of
from hpcpar.sweep.folder import FAILED, PLANNED, RUNNING, Status
from hpcpar.sweep.progress import SweepProgress
from hpcpar.sweep.schedulers import SCHEDULERS, Scheduler
from hpcpar.sweep.scripts import BatchJob, cost
from hpcpar.sweep.study import KINDS, Case, Study, StudyOptions

#: Iterations of a run without --steps and --epochs.
STEPS = 30
#: Mini-batches in synthetic data.
BATCHES = 4


@dataclass(frozen=True, repr=False)
class SweepResult(TableResult):
    """A scaling study in its current state.

    Attributes
    ----------
    title : str
        One line that names the study.
    page : str
        Path of the report.
    note : str
        The reason if the report has no pictures, else empty.
    dry_run : dict
        For a dry run: the ``commands``, or the paths of the batch ``scripts``.
    """

    columns = ("strategy", "ranks", "batch", "state", "predicted.iteration_s",
               "measured.iteration_s", "accuracy", "measured.efficiency")
    study: Study
    title: str
    states: dict[Case, Status]
    points: tuple[Point, ...]
    document: dict[str, Any]
    page: str
    note: str = ""
    dry_run: dict[str, list[str]] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """The fastest case in one sentence."""
        return conclusion(self.points)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar sweep --json``."""
        return self.document | self.dry_run

    def rows(self) -> list[Record]:
        """One row per case, as ``hpcpar sweep --csv``."""
        return flat(self.document["points"])

    def plot(self, path: str | None = None, name: str = "time") -> Any:
        """Draws ``time``, ``efficiency``, ``parts`` or ``node-hours``, into the file `path` if
        given; returns the figure.
        """
        if name not in PICTURES:
            raise unknown("picture", name, PICTURES)
        if not any(p.predicted for p in self.points):
            raise InputError(f"{self.title}: no case can run, so there is nothing to draw")
        drawn = figures(self.points, self.title, self.study.kind == "weak")
        return finish(pyplot(), drawn[name], path, DPI)


@dataclass(frozen=True)
class SweepArguments(BatchOptions, GraphOptions, AnchorOptions, LoadOptions, StepOptions,
                     LossOptions, ModuleOptions, section="job"):
    """The options of ``hpcpar sweep``.

    Attributes
    ----------
    kind : str
        ``strong`` (the batch is over all ranks) or ``weak`` (of each rank).
    site : (path, mapping)
        The file of the site's batch options, and these options, which all others override.
    """

    kind: str
    network: NetworkLike = field(metadata=about_network())
    ranks: int | str | Iterable[int] = field(
        metadata=about(several_ranks, "numbers of ranks", "P,P,...", section="plan"))
    batch: float | Fraction | str = field(metadata=about(
        share, "samples per mini-batch; strong: over all ranks, the same at every size; weak: on "
        "each rank", "B", section="plan"))
    out: str = field(metadata=about(
        str, "folder of the sweep; the same command continues a stopped sweep", "FOLDER",
        section="output", **OUT))
    machine: MachineLike | None = field(default=None, metadata=about_machine(
        "the folder's, else the site's, else measured, or local with batch jobs"))
    strategy: str | Iterable[str] = option(
        "auto,data", path, "strategies to run at every size; 'grid:*' means every grid", "S,S,...",
        section="plan", former=("--strategies",), first=True)
    _: KW_ONLY
    simulate: int | str | Iterable[int] | None = option(
        None, several_ranks, "further numbers of ranks, to simulate instead of run", "P,P,...",
        section="prediction")
    data: str = option(
        "", path, f"data file (default: synthetic data, {BATCHES} of the largest mini-batches)",
        "FILE.h5", section="network and data", first=True)
    steps: int | None = option(
        None, positive, f"length of every run in iterations (default {STEPS})", "N",
        section="training", excludes="length", first=True)
    epochs: int | None = option(
        None, positive, "length of every run in epochs, instead of --steps", "N",
        section="training", excludes="length")
    retry: bool = flag("run failed cases again")
    dry_run: bool = flag(
        "plan, and print the commands or batch scripts without running them", first=True)
    launcher: str = option(
        "local", OneOf(SCHEDULERS, LAUNCHERS), "start ranks here with mpiexec, or submit batch "
        "jobs", first=True)
    mpiexec: str = option(
        "", str, "local: launcher command before -n P (default: mpiexec next to this Python, or on "
        "PATH)", "COMMAND")
    no_wait: bool = flag("submit, collect finished runs, and return", section="batch jobs")
    one_allocation: bool = flag(
        "one job for all sizes (default: one job per size)", section="batch jobs")
    job_file: str = option(
        "", path, "file of these options (docs/reference/sweep.md); the command line overrides it",
        "FILE.toml", section="batch jobs")
    site: tuple[str, Mapping[str, Any]] = ("", {})

    def __post_init__(self) -> None:
        super().__post_init__()
        argument("kind", OneOf(KINDS), self.kind)
        if not names(self.strategy):
            raise InputError("--strategy is empty; drop it, or name strategies, as in auto,data")
        if self.kind == "strong":
            argument("batch", positive, self.batch)

    def job(self) -> BatchOptions:
        """The options of batch jobs: the site's, then the file's, then these."""
        given = {f.name: getattr(self, f.name) for f in fields(BatchOptions)
                 if getattr(self, f.name) != f.default}
        return read(self.job_file, given, self.site)


def run_sweep(asked: SweepArguments,
              agreed: Callable[[str], bool] = lambda question: True) -> SweepResult:
    """Runs a scaling study, or continues a stopped one.

    The default machine is ``machine.toml`` in the folder. Without that file, a local sweep measures
    the machine, and other sweeps take ``local``. Jobs are submitted if `agreed` returns true.
    """
    load_modules(asked.layers)
    job, system = asked.job(), SCHEDULERS[asked.launcher]
    spec, net = network_of(asked.network, asked.input, asked.classes, asked.loss,
                           asked.label_smoothing)
    chosen = PlanningOptions(overlap=asked.overlap, precision=asked.precision).planning(net)
    out = os.path.abspath(asked.out)
    make_folder(os.path.join(out, folder.CASES))
    with folder.alone(out), SweepProgress() as tell:
        runs_here = system is None and not asked.dry_run
        measures = runs_here and _given_machine(asked) is None
        if measures and asked.measured:
            raise InputError("--measured corrects a given machine, but this sweep calibrates its "
                             "own: add --machine NAME")
        study = _study(asked, spec, net, chosen, tell)
        job = job.on(study.machine)
        study = replace(study, nodes={
            str(p): job.nodes_for(p) or nodes(study.machine, p)
            for p in (*study.ranks, *study.simulated)})
        studies.save(study)
        if measures:
            tell.say("calibrating this machine for the plans of the study")
            first = planning.prepare(replace(study, simulated=()), tell.planning)
            study = replace(study, machine=local.calibrate(study, first, _launcher(asked.mpiexec)))
            studies.save(study)
        for line in _cautions(study, runs_here):
            tell.say(f"note: {line}")
        runs = _Runs(study, planning.prepare(study, tell.planning), asked, job, tell)
        dry = runs.here() if system is None else runs.by_jobs(system, agreed)
    return _result(study, runs.states, dry)


sweep = by_keyword(SweepArguments, run_sweep)


def _given_machine(asked: SweepArguments) -> MachineLike | None:
    """The given machine, or the file in the folder; None without both."""
    beside = os.path.join(os.path.abspath(asked.out), folder.MACHINE)
    return beside if asked.machine is None and os.path.exists(beside) else asked.machine


def _study(asked: SweepArguments, spec: NetworkSpec, network: Network, chosen: Mapping[str, Any],
           tell: SweepProgress) -> Study:
    """The study, except for its numbers of nodes; makes synthetic data if there are none."""
    sizes = tuple(sorted(set(several_ranks(asked.ranks))))
    simulated = {*several_ranks(asked.simulate)} if asked.simulate else set()
    each, out = share(asked.batch), os.path.abspath(asked.out)
    largest = weak_batch(each, sizes[-1] if asked.kind == "weak" else 1)
    data, samples = data_of(network, asked.data, out, BATCHES * largest, asked.dry_run, tell)
    machine = asked.loaded(_machine(_given_machine(asked) or "local", asked.device))
    machine = fit(machine, network, spec, asked.measured, chosen)[0]
    return Study(
        asked.kind, spec, machine, sizes, tuple(names(asked.strategy)), each,
        StudyOptions(gather=chosen["gather"], overlap=chosen["overlap"],
                     precision=chosen["precision"], bucket_bytes=chosen["bucket_bytes"]),
        data, samples, asked.steps or (0 if asked.epochs else STEPS), asked.epochs or 1,
        asked.device, out, asked.transport, asked.math_for(chosen["precision"]), asked.kernels,
        graphs=asked.graphs, epoch_samples=samples if asked.data else chosen["samples"],
        # files by their absolute path, because runs have other folders
        layers=tuple(os.path.abspath(m) if m.endswith(".py") else m for m in asked.layers),
        simulated=tuple(sorted(simulated - {*sizes})))


def _launcher(given: str) -> list[str]:
    return shlex.split(given) or [mpiexec()]


def sweep_report(out: str) -> SweepResult:
    """Writes the report of a finished or partial study again, without planning or running.

    Raises
    ------
    InputError
        The folder `out` does not hold a study.
    """
    require_no_links(os.path.abspath(out))
    study = studies.load(os.path.abspath(out))
    found = {case: folder.read_status(study.folder(case)) for case in study.cases()}
    return _result(study, {case: status for case, status in found.items() if status}, {})


def _result(study: Study, states: dict[Case, Status], dry: dict[str, list[str]]) -> SweepResult:
    points, document, note = report.write(study, states)
    return SweepResult(study, report.title(study), states, tuple(points), document,
                       os.path.join(study.out, folder.PAGE), note, dry)


def _machine(given: MachineLike, device: str) -> Machine:
    """The machine; its device must be the one that the runs use."""
    machine = machine_of(given)
    if (machine.kind, device) in (("gpu", "cpu"), ("cpu", "gpu")):
        raise InputError(f"ranks of machine {machine.name} compute on {machine.kind}s, but "
                         f"--device is {device}: give --device {machine.kind} or another "
                         "--machine")
    return machine


def _cautions(study: Study, measured_here: bool) -> list[str]:
    """Warnings about uncertain predictions or measurements."""
    guess = (f"machine {study.machine.name} is not calibrated: predictions are estimates; write "
             f"{os.path.join(study.out, 'machine.toml')} with: hpcpar calibrate -o")
    warning = peak_warning(study.machine)
    anchoring = study.machine.anchored
    follow = [] if anchoring is None else [f"times follow measurements: {fitted(anchoring)}"]
    return ([guess] * (not study.machine.compute) + [warning] * bool(warning) + follow
            + (slowdowns(1) if measured_here else []))


@dataclass(frozen=True)
class _Runs:
    """The cases of a study, and how they run."""

    study: Study
    states: dict[Case, Status]
    asked: SweepArguments
    job: BatchOptions
    tell: SweepProgress

    def _todo(self) -> list[Case]:
        """Cases to run; a killed sweep leaves cases marked as running."""
        states = (PLANNED, RUNNING, *[FAILED] * self.asked.retry)
        return [case for case, status in self.states.items() if status.state in states]

    def here(self) -> dict[str, list[str]]:
        """Runs the cases with mpiexec; a dry run returns the commands instead."""
        todo = self._todo()
        launcher = _launcher(self.asked.mpiexec) if todo else []
        if self.asked.dry_run:
            return {"commands": [shlex.join(local.command(self.study, case, launcher))
                                 for case in todo]}
        self._run(todo, launcher)
        return {}

    def by_jobs(self, system: Scheduler, agreed: Callable[[str], bool]) -> dict[str, list[str]]:
        """Simulates cases here and submits jobs for the others; a dry run returns the scripts."""
        todo = self._todo()
        scripts = remote.write(
            self.study, system, self.job, [c for c in todo if not self.study.simulates(c)],
            self.asked.one_allocation, os.getcwd())
        if self.asked.dry_run:
            return {"scripts": [*scripts.values()]}
        self._require_consent(scripts, agreed)
        self._run([c for c in todo if self.study.simulates(c)], [])
        self._submit(system, scripts)
        return {}

    def _run(self, todo: Sequence[Case], launcher: Sequence[str]) -> None:
        limit_s = seconds(self.job.time) if self.job.time else None
        self.tell.begin(len(todo))
        for case in todo:
            self.tell.running(case)
            self.states[case] = local.run(self.study, case, self.states[case], launcher, limit_s)
            self.tell.ended(case, self.states[case])

    def _require_consent(self, scripts: dict[BatchJob, str], agreed: Callable[[str], bool]) -> None:
        lines, total = cost(self.study, self.job, scripts)
        for line in lines:
            self.tell.say(line)
        self.tell.stop()  # its bar would cover the question
        if lines and not agreed(f"Submit {total}?"):
            raise RunError("no job was submitted; the same command asks again")
        self.tell.start()

    def _submit(self, system: Scheduler, scripts: dict[BatchJob, str]) -> None:
        states, tell = self.states, self.tell
        watch = remote.JobWatcher(self.study, system, states)
        try:
            begun = remote.submit(self.study, system, scripts, states)
            if begun:
                tell.say(f"submitted job{'s' if len(begun) > 1 else ''} {', '.join(begun)}")
            if self.asked.no_wait:
                watch.poll()
                return
            tell.begin(len(watch.open))
            watch.wait(lambda case: tell.ended(case, states[case]), tell.jobs)
        except KeyboardInterrupt:
            if watch.jobs:
                tell.say(f"jobs {', '.join(watch.jobs)} keep running: the same command collects "
                         f"them; {system.cancel} {' '.join(watch.jobs)} ends them")
            raise
