"""A scaling study: plans, runs and reports many cases."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from hpcpar.api.checks import (
    DEVICES,
    OneOf,
    argument,
    check_gpu_options,
    names,
    optional,
    positive,
    several_ranks,
    share,
)
from hpcpar.api.options import PlanningOptions
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import MachineLike, NetworkLike, machine_of, network_of
from hpcpar.comm.transport import Transport
from hpcpar.data import dataset
from hpcpar.data.synthetic import synthetic
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError, unknown
from hpcpar.kernels.interface import MathMode
from hpcpar.machine.model import Machine
from hpcpar.network.base import shape_text
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.report.pictures import finish, pyplot
from hpcpar.report.sweep_plots import DPI, PICTURES, figures
from hpcpar.report.sweep_points import Point
from hpcpar.report.sweep_table import conclusion
from hpcpar.search.scaling import nodes, weak_batch
from hpcpar.sweep import folder, local, planning, remote, report
from hpcpar.sweep import study as studies
from hpcpar.sweep.folder import FAILED, PLANNED, RUNNING, Status
from hpcpar.sweep.progress import SweepProgress
from hpcpar.sweep.scripts import BatchJob
from hpcpar.sweep.slurm import Slurm, read, seconds
from hpcpar.sweep.study import KINDS, Case, Study, StudyOptions

LAUNCHERS = ("local", "slurm")
#: Iterations of a run without steps and epochs.
STEPS = 30
#: Mini-batches in synthetic data.
BATCHES = 4
#: Planning options of a study, and the options of Slurm.
_PLANNING, _SLURM = ("overlap", "dtype", "load"), tuple(f.name for f in fields(Slurm))


@dataclass(frozen=True, repr=False)
class SweepResult(TableResult):
    """A scaling study, as far as it has come.

    Attributes
    ----------
    title : str
        One line that names the study.
    page : str
        Path of the report.
    note : str
        Why it has no pictures; empty where it has.
    dry_run : dict
        Of a dry run: the ``commands``, or the paths of the batch ``scripts``.
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
        """One row a case, as ``hpcpar sweep --csv``."""
        return flat(self.document["points"])

    def plot(self, path: str | None = None, name: str = "time") -> Any:
        """Draws ``time``, ``efficiency``, ``parts`` or ``node-hours``, into the file `path` if
        given; returns the figure.
        """
        if name not in PICTURES:
            raise unknown("picture", name, PICTURES)
        if not any(p.predicted for p in self.points):
            raise InputError(f"{self.title}: nothing can run, so there is nothing to draw")
        drawn = figures(self.points, self.title, self.study.kind == "weak")
        return finish(pyplot(), drawn[name], path, DPI)


def sweep(kind: str, network: NetworkLike, ranks: int | str | Iterable[int],
          batch: float | Fraction | str, out: str, machine: MachineLike | None = None,
          strategies: str | Iterable[str] = "auto,data", *,
          input: Shape | str | None = None, classes: int | None = None, steps: int | None = None,
          epochs: int | None = None, data: str = "", device: str = "cpu",
          transport: str = "staged", math: str = "fp32",
          retry: bool = False, dry_run: bool = False, launcher: str = "local", mpiexec: str = "",
          simulate: int | str | Iterable[int] | None = None, no_wait: bool = False,
          one_allocation: bool = False, slurm: str = "", layers: Iterable[str] = (),
          site: tuple[str, Mapping[str, Any]] = ("", {}), **options: Any) -> SweepResult:
    """Runs a scaling study, or goes on where it stopped.

    Arguments are the options of ``hpcpar sweep``, by the same names and with the same defaults.

    Parameters
    ----------
    kind : str
        ``strong`` or ``weak``.
    batch : int, float, Fraction or str
        In a weak study below 1 where ranks share a sample, as in ``1/4``.
    network, machine
        As in `hpcpar.plan`. Without `machine` it is ``machine.toml`` in the folder `out`; without
        that file a local sweep measures it, others take ``local``.
    simulate : int, str or list, optional
        Further numbers of ranks, which are simulated instead of run.
    layers : iterable of str
        Modules or files that every run imports, as ``--layers``.
    site : (path, mapping)
        Slurm options of the site, which all others override, and their file.
    options
        ``overlap``, ``dtype``, ``load``, and those of `hpcpar.sweep.slurm.Slurm`.

    Raises
    ------
    InputError
        An argument is not possible, or the folder is of another study.
    """
    check_gpu_options(argument("device", OneOf(DEVICES), device),
                      argument("transport", OneOf(Transport), transport),
                      argument("math", OneOf(MathMode), math))
    for name in options:
        if name not in (*_SLURM, *_PLANNING):
            raise unknown("option", name, (*_SLURM, *_PLANNING))
    asked = read(slurm, {k: v for k, v in options.items() if k in _SLURM}, site)
    if steps is not None and epochs is not None:
        raise InputError("argument epochs: not allowed with argument steps")
    here = argument("launcher", OneOf(LAUNCHERS), launcher) == "local"
    sizes = tuple(sorted(set(argument("ranks", several_ranks, ranks))))
    simulated = tuple(sorted(set(optional("simulate", several_ranks, simulate) or ()) - {*sizes}))
    each = argument("batch", share if kind == "weak" else positive, batch)
    wanted = tuple(names(strategies))
    if not wanted:
        raise InputError("--strategies names none; leave it out, or give some, as in auto,data")
    spec, net = network_of(network, input, classes)
    planning_options = PlanningOptions.of({k: v for k, v in options.items() if k in _PLANNING})
    chosen = planning_options.planning(spec)
    out = os.path.abspath(out)
    folder.make(os.path.join(out, "cases"))
    with folder.alone(out), SweepProgress() as tell:
        beside = os.path.join(out, folder.MACHINE)
        if machine is None and os.path.exists(beside):
            machine = beside
        largest = weak_batch(each, sizes[-1] if kind == "weak" else 1)
        path, samples = _data(net, data, out, BATCHES * largest, dry_run, tell)
        study = Study(
            argument("kind", OneOf(KINDS), kind), spec,
            planning_options.on(_machine(machine or "local", device)), sizes, wanted, each,
            StudyOptions(gather=chosen["gather"], overlap=chosen["overlap"], dtype=chosen["dtype"],
                         bucket_bytes=chosen["bucket_bytes"]),
            path, samples, optional("steps", positive, steps) or (0 if epochs else STEPS),
            optional("epochs", positive, epochs) or 1, device, out, transport, math,
            layers=tuple(_module(name) for name in layers or ()))
        asked = asked.on(study.machine)
        study = replace(study, simulated=simulated, nodes={
            str(p): asked.nodes_for(p) or nodes(study.machine, p) for p in (*sizes, *simulated)})
        if here and machine is None and not dry_run:
            tell.say("calibrating this machine for the plans of the study")
            first = planning.prepare(replace(study, simulated=()), tell.planning)
            study = replace(study, machine=local.calibrate(study, first, _launcher(mpiexec)))
        studies.save(study)
        for line in _cautions(study, here and not dry_run):
            tell.say(f"note: {line}")
        states = planning.prepare(study, tell.planning)
        # a case still marked as running was left by a sweep that was killed
        todo = [case for case, status in states.items()
                if status.state in (PLANNED, RUNNING, *[FAILED] * retry)]
        played = [case for case in todo if study.simulates(case)]
        if not (here or dry_run):
            _run_here(study, states, played, [], asked, tell)
            todo = [case for case in todo if case not in played]
        launch = _launcher(mpiexec) if here and todo else []
        scripts = {} if here else remote.write(study, asked, todo, one_allocation, os.getcwd())
        if here and not dry_run:
            _run_here(study, states, todo, launch, asked, tell)
        elif not dry_run:
            _run_by_slurm(study, states, scripts, no_wait, tell)
    dry: dict[str, list[str]] = {}
    if dry_run:
        commands = [shlex.join(local.command(study, case, launch)) for case in todo if here]
        dry = {"commands": commands} if here else {"scripts": [*scripts.values()]}
    return _result(study, states, dry)


def _launcher(given: str) -> list[str]:
    return shlex.split(given) or [local.mpiexec()]


def sweep_report(out: str) -> SweepResult:
    """Draws the report of a finished or partial study again; plans and runs nothing.

    Raises
    ------
    InputError
        The folder `out` is not that of a study.
    """
    folder.check_links(os.path.abspath(out))
    study = studies.load(os.path.abspath(out))
    found = {case: folder.read_status(study.folder(case)) for case in study.cases()}
    return _result(study, {case: status for case, status in found.items() if status}, {})


def _result(study: Study, states: dict[Case, Status], dry: dict[str, list[str]]) -> SweepResult:
    points, document, note = report.write(study, states)
    return SweepResult(study, report.title(study), states, tuple(points), document,
                       os.path.join(study.out, folder.PAGE), note, dry)


def _machine(given: MachineLike, device: str) -> Machine:
    """The machine, which computes on the device that the runs will use."""
    machine = machine_of(given)
    if (machine.kind, device) in (("gpu", "cpu"), ("cpu", "gpu")):
        raise InputError(f"ranks of machine {machine.name} compute on {machine.kind}s, --device is "
                         f"{device}: give --device {machine.kind}, or another --machine")
    return machine


def _cautions(study: Study, measured_here: bool) -> list[str]:
    """Facts that make predictions or measurements uncertain."""
    guess = (f"machine {study.machine.name} is not calibrated: predictions are estimates; write "
             f"{os.path.join(study.out, 'machine.toml')} with: hpcpar calibrate -o")
    return [guess] * (not study.machine.compute) + (slowdowns(1) if measured_here else [])


def _run_here(study: Study, states: dict[Case, Status], todo: Sequence[Case],
              launcher: Sequence[str], asked: Slurm, tell: SweepProgress) -> None:
    limit_s = seconds(asked.time) if asked.time else None
    tell.begin(len(todo))
    for case in todo:
        tell.running(case)
        states[case] = local.run(study, case, states[case], launcher, limit_s)
        tell.ended(case, states[case])


def _run_by_slurm(study: Study, states: dict[Case, Status], scripts: dict[BatchJob, str],
                  no_wait: bool, tell: SweepProgress) -> None:
    watch = remote.SlurmWatcher(study, states)
    try:
        begun = remote.submit(study, scripts, states)
        if begun:
            tell.say(f"submitted job{'s' if len(begun) > 1 else ''} {', '.join(begun)}")
        if no_wait:
            watch.poll()
            return
        tell.begin(len(watch.open))
        watch.wait(lambda case: tell.ended(case, states[case]), tell.jobs)
    except KeyboardInterrupt:
        if watch.jobs:
            tell.say(f"jobs {', '.join(watch.jobs)} go on: the same command collects them; scancel "
                     f"{' '.join(watch.jobs)} ends them")
        raise


def _module(name: str) -> str:
    """A module for runs in other folders: of a file the absolute path."""
    return os.path.abspath(name) if name.endswith(".py") else name


def _data(network: Network, given: str, out: str, needed: int, dry: bool,
          tell: SweepProgress) -> tuple[str, int]:
    """The data file and its number of samples; makes synthetic data where there are too few.

    A dry run makes none. A sweep over more ranks needs more samples.
    """
    path = os.path.abspath(given or os.path.join(out, "data.h5"))
    there = _samples(network, path) if given or os.path.exists(path) else 0
    if given or there >= needed:
        return path, there
    if not dry:
        tell.say(f"making {needed} synthetic images in {path}")
        targets = network.classes if network.loss.takes_targets else 0
        synthetic(path, network.image_shape, network.classes, needed, targets=targets,
                  pixels=len(network.shapes[network.layers[-1].name]) > 1)
    return path, needed


def _samples(network: Network, path: str) -> int:
    """The number of samples of a data file; checks that it suits the network."""
    count, *shape = dataset.info(path)["images"]["shape"]
    if tuple(shape) != network.image_shape:
        has, takes = shape_text(shape), shape_text(network.image_shape)
        raise InputError(f"data file {path} holds images {has}, the network takes {takes}; make "
                         f"other data, or give --input {has}")
    return int(count)
