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
from hpcpar.comm.device_options import GpuOptions
from hpcpar.data import dataset
from hpcpar.data.loader import Loader
from hpcpar.data.synthetic import synthetic
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError, RunError, unknown
from hpcpar.io.files import make_folder, require_no_links
from hpcpar.machine.model import Machine
from hpcpar.machine.sheet_rate import peak_warning
from hpcpar.network.graph import Network
from hpcpar.network.source import load_modules
from hpcpar.options.checks import OneOf, argument, names, path, positive, several_ranks, share
from hpcpar.options.fields import OUT, about, flag, option
from hpcpar.options.other_names import LAUNCHERS
from hpcpar.plan.plan import Plan
from hpcpar.process.launchers import mpiexec
from hpcpar.report.pictures import finish, pyplot
from hpcpar.report.pictures.sweep_plots import DPI, PICTURES, figures
from hpcpar.report.sweep_points import Point
from hpcpar.report.tables.sweep_table import conclusion
from hpcpar.schedule.runnable import require_executed
from hpcpar.search.scaling import nodes, weak_batch
from hpcpar.sweep import folder, local, planning, remote, report
from hpcpar.sweep import study as studies
from hpcpar.sweep.batch_options import BatchOptions, read, seconds
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
class SweepArguments(BatchOptions, GpuOptions, LoadOptions, StepOptions, LossOptions, ModuleOptions,
                     section="job"):
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
    require_executed(asked.precision or Plan.precision)
    load_modules(asked.layers)
    machine, device, dry_run = asked.machine, asked.device, asked.dry_run
    job, system = asked.job(), SCHEDULERS[asked.launcher]
    here = system is None
    sizes = tuple(sorted(set(several_ranks(asked.ranks))))
    simulated = tuple(sorted({*several_ranks(asked.simulate)} - {*sizes})) if asked.simulate else ()
    each = share(asked.batch)
    wanted = tuple(names(asked.strategy))
    if not wanted:
        raise InputError("--strategy is empty; drop it, or name strategies, as in auto,data")
    spec, net = network_of(asked.network, asked.input, asked.classes, asked.loss,
                           asked.label_smoothing)
    chosen = PlanningOptions(overlap=asked.overlap, precision=asked.precision).planning(net)
    out = os.path.abspath(asked.out)
    make_folder(os.path.join(out, folder.CASES))
    with folder.alone(out), SweepProgress() as tell:
        beside = os.path.join(out, folder.MACHINE)
        if machine is None and os.path.exists(beside):
            machine = beside
        largest = weak_batch(each, sizes[-1] if asked.kind == "weak" else 1)
        data, samples = _data(net, asked.data, out, BATCHES * largest, dry_run, tell)
        study = Study(
            asked.kind, spec, asked.loaded(_machine(machine or "local", device)), sizes, wanted,
            each,
            StudyOptions(gather=chosen["gather"], overlap=chosen["overlap"],
                         precision=chosen["precision"], bucket_bytes=chosen["bucket_bytes"]),
            data, samples, asked.steps or (0 if asked.epochs else STEPS), asked.epochs or 1, device,
            out, asked.transport, asked.math_for(chosen["precision"]), asked.kernels,
            epoch_samples=samples if asked.data else chosen["samples"],
            layers=tuple(_module(name) for name in asked.layers))
        job = job.on(study.machine)
        study = replace(study, simulated=simulated, nodes={
            str(p): job.nodes_for(p) or nodes(study.machine, p) for p in (*sizes, *simulated)})
        studies.save(study)
        if here and machine is None and not dry_run:
            tell.say("calibrating this machine for the plans of the study")
            first = planning.prepare(replace(study, simulated=()), tell.planning)
            study = replace(study, machine=local.calibrate(study, first, _launcher(asked.mpiexec)))
            studies.save(study)
        for line in _cautions(study, here and not dry_run):
            tell.say(f"note: {line}")
        states = planning.prepare(study, tell.planning)
        # a killed sweep leaves cases marked as running
        todo = [case for case, status in states.items()
                if status.state in (PLANNED, RUNNING, *[FAILED] * asked.retry)]
        played = [case for case in todo if study.simulates(case)]
        if not here:
            todo = [case for case in todo if case not in played]
        launch = _launcher(asked.mpiexec) if here and todo else []
        scripts = {} if system is None else remote.write(
            study, system, job, todo, asked.one_allocation, os.getcwd())
        if system is not None and not dry_run:
            _require_consent(cost(study, job, scripts), agreed, tell)
            _run_here(study, states, played, [], job, tell)
            _run_by_jobs(study, system, states, scripts, asked.no_wait, tell)
        elif not dry_run:
            _run_here(study, states, todo, launch, job, tell)
    dry: dict[str, list[str]] = {}
    if dry_run:
        commands = [shlex.join(local.command(study, case, launch)) for case in todo if here]
        dry = {"commands": commands} if here else {"scripts": [*scripts.values()]}
    return _result(study, states, dry)


sweep = by_keyword(SweepArguments, run_sweep)


def _module(name: str) -> str:
    """A module's name that works in other folders: files get their absolute path."""
    return os.path.abspath(name) if name.endswith(".py") else name


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
    return ([guess] * (not study.machine.compute) + [warning] * bool(warning)
            + (slowdowns(1) if measured_here else []))


def _run_here(study: Study, states: dict[Case, Status], todo: Sequence[Case],
              launcher: Sequence[str], asked: BatchOptions, tell: SweepProgress) -> None:
    limit_s = seconds(asked.time) if asked.time else None
    tell.begin(len(todo))
    for case in todo:
        tell.running(case)
        states[case] = local.run(study, case, states[case], launcher, limit_s)
        tell.ended(case, states[case])


def _require_consent(jobs: tuple[list[str], str], agreed: Callable[[str], bool],
                     tell: SweepProgress) -> None:
    lines, total = jobs
    for line in lines:
        tell.say(line)
    tell.stop()  # its bar would cover the question
    if lines and not agreed(f"Submit {total}?"):
        raise RunError("no job was submitted; the same command asks again")
    tell.start()


def _run_by_jobs(study: Study, system: Scheduler, states: dict[Case, Status],
                 scripts: dict[BatchJob, str], no_wait: bool, tell: SweepProgress) -> None:
    watch = remote.JobWatcher(study, system, states)
    try:
        begun = remote.submit(study, system, scripts, states)
        if begun:
            tell.say(f"submitted job{'s' if len(begun) > 1 else ''} {', '.join(begun)}")
        if no_wait:
            watch.poll()
            return
        tell.begin(len(watch.open))
        watch.wait(lambda case: tell.ended(case, states[case]), tell.jobs)
    except KeyboardInterrupt:
        if watch.jobs:
            tell.say(f"jobs {', '.join(watch.jobs)} keep running: the same command collects them; "
                     f"{system.cancel} {' '.join(watch.jobs)} ends them")
        raise


def _data(network: Network, given: str, out: str, needed: int, dry: bool,
          tell: SweepProgress) -> tuple[str, int]:
    """The data file and its number of samples; makes synthetic data if there are too few.

    A dry run makes no data. A sweep over more ranks needs more samples.
    """
    path = os.path.abspath(given or os.path.join(out, "data.h5"))
    count = _samples(network, path) if given or os.path.exists(path) else 0
    if given or count >= needed:
        return path, count
    if count and not str(dataset.info(path).get("source", "")).startswith("synthetic"):
        raise InputError(f"{path} has {count} samples, but the sweep needs {needed}, and it does "
                         "not replace data that it did not make: name the file with --data, or "
                         "choose another --out")
    if not dry:
        tell.say(f"making {needed} synthetic images in {path}")
        targets = network.classes if network.loss.takes_targets else 0
        synthetic(path, network.image_shape, network.classes, needed, targets=targets,
                  pixels=bool(network.output_extents), extents=network.output_extents)
    return path, needed


def _samples(network: Network, path: str) -> int:
    """The number of samples of a data file; checks that it suits the network."""
    box = tuple((0, 0) for _ in (0, *network.image_shape))
    truth = tuple((0, 0) for _ in (0, *network.truth_shape))
    with Loader(path, box, truth, 1, shape=network.image_shape, classes=network.classes,
                extents=network.output_extents) as loader:
        return loader.samples
