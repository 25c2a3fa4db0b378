"""``hpcpar sweep strong|weak``: plans, runs and reports a scaling study."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from dataclasses import fields, replace
from types import FrameType
from typing import NoReturn

from hpcpar.cli import options, site
from hpcpar.cli.sweep_progress import SweepProgress
from hpcpar.data import dataset
from hpcpar.data.synthetic import synthetic
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError, RunError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.base import shape_text
from hpcpar.network.graph import Network
from hpcpar.network.layers import MeanSquaredError
from hpcpar.report.sweep_table import show_points
from hpcpar.report.tables import say
from hpcpar.search.scaling import weak_batch
from hpcpar.sweep import folder, local, planning, remote, report, slurm
from hpcpar.sweep import study as studies
from hpcpar.sweep.folder import FAILED, PLANNED, RUNNING, Status
from hpcpar.sweep.scripts import BatchJob
from hpcpar.sweep.study import KINDS, Case, Study

REPORT = "report"
LAUNCHERS = ("local", "slurm")
#: Iterations of a run without --steps and --epochs.
STEPS = 30
#: Mini-batches in synthetic data.
BATCHES = 4


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join((*KINDS, REPORT)))
    again = kinds.add_parser(REPORT, help="draw the report of a finished or partial sweep again",
                             allow_abbrev=False)
    again.add_argument("out", metavar="FOLDER", help="folder of the sweep")
    options.add_output(again)
    for kind, batch in zip(KINDS, ("over all ranks, the same at every size", "of each rank"),
                           strict=True):
        p = kinds.add_parser(kind, help=f"{kind} scaling: --batch is {batch}", allow_abbrev=False)
        options.add_network(p)
        options.add_machine(p)
        p.add_argument("--ranks", type=options.positives, required=True, metavar="P,P,...",
                       help="numbers of ranks")
        p.add_argument("--strategies", default="auto,data", metavar="S,S,...",
                       help="each at each size; 'grid:*' stands for every grid (default auto,data)")
        p.add_argument("--batch", required=True, metavar="B",
                       type=options.share if kind == "weak" else options.positive,
                       help=f"samples of a mini-batch, {batch}")
        options.add_types(p)
        length = p.add_mutually_exclusive_group()
        length.add_argument("--steps", type=options.positive, metavar="N",
                            help=f"iterations of every run (default {STEPS})")
        length.add_argument("--epochs", type=options.positive, metavar="N",
                            help="length of every run in epochs, instead of --steps")
        p.add_argument(
            "--data", default="", metavar="FILE.h5",
            help=f"data file (default: synthetic, {BATCHES} of the largest mini-batches)",
        )
        options.add_direct(p)
        p.add_argument("--out", required=True, metavar="FOLDER",
                       help="folder of the sweep: the same command goes on where it stopped")
        p.add_argument("--retry", action="store_true", help="also run again what has failed")
        p.add_argument("--dry-run", action="store_true",
                       help="plan, and print the commands or batch scripts; run nothing")
        p.add_argument("--launcher", default="local", **options.one_of(LAUNCHERS),
                       help="start ranks here with mpiexec, or submit batch jobs (default local)")
        p.add_argument("--mpiexec", default="", metavar="COMMAND",
                       help="local: what stands before -n P (default: the mpiexec beside this "
                       "Python, or on PATH)")
        p.add_argument("--no-wait", action="store_true",
                       help="Slurm: submit, collect what is there, and return")
        p.add_argument("--one-allocation", action="store_true",
                       help="Slurm: one job for all sizes (default: one for each)")
        _add_slurm(p)
        options.add_output(p)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    """Adds the options that a TOML file may have as well."""
    parser.add_argument("--slurm", default="", metavar="FILE.toml",
                        help="Slurm options (docs/reference/sweep.md); those given here win")
    parser.add_argument("--account", metavar="A", help="account that pays")
    parser.add_argument("--partition", metavar="Q", help="partition")
    parser.add_argument("--time", metavar="H:M:S",
                        help="limit of a job; of a case, where they are run locally")
    parser.add_argument("--constraint", metavar="C", help="features that nodes must have")
    parser.add_argument("--nodes", type=options.positive, metavar="N", help="nodes of every job")
    parser.add_argument("--ranks-per-node", type=options.positive, metavar="N",
                        help="ranks of a node, instead of --nodes")
    parser.add_argument("--cpus-per-rank", type=options.positive, metavar="N",
                        help="cores of a rank")
    parser.add_argument("--gpus-per-rank", type=options.positive, metavar="N",
                        help="GPUs of a rank (default 1 with --device gpu)")
    parser.add_argument("--module", action="append", dest="modules", metavar="M",
                        help="load this module (may be repeated)")
    parser.add_argument(
        "--sbatch", action="append", metavar="LINE",
        help="another option of sbatch, as in --sbatch=--qos=debug (may be repeated)",
    )
    parser.add_argument(
        "--mpi", metavar="TYPE",
        help="of srun: pmi2, pmix, ... (default: what suits the installed MPI wheel)",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if args.kind == REPORT:
        study = studies.load(os.path.abspath(args.out))
        found = {case: folder.read_status(study.folder(case)) for case in study.cases()}
        return _report(args, study, {case: s for case, s in found.items() if s is not None}, {})
    options.check_direct(args)
    usual = site.read()
    asked = slurm.read(args.slurm, {field.name: getattr(args, field.name, None)
                                    for field in fields(slurm.Slurm)}, (usual.path, usual.slurm))
    # handled like Ctrl-C: the ranks are ended, and the folder stays consistent
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _interrupt)
    out = os.path.abspath(args.out)
    folder.make(os.path.join(out, "cases"))
    here = args.launcher == "local"
    dry: dict[str, list[str]] = {}
    with folder.alone(out):
        study = _study(args, out)
        asked = asked.on(study.machine)
        # this node, the requested ones, or by the machine's nodes
        study = replace(study, nodes={str(ranks): 1 if here else asked.nodes_for(ranks) or ranks
                                      for ranks in study.ranks})
        studies.save(study)
        for line in _cautions(study, here and not args.dry_run):
            say(f"note: {line}")
        with SweepProgress() as tell:
            states = planning.prepare(study, tell.planning)
            # a case still marked as running was left by a sweep that was killed
            wanted = (PLANNED, RUNNING, *[FAILED] * args.retry)
            todo = [case for case, status in states.items() if status.state in wanted]
            launcher = []
            if here and todo:
                launcher = shlex.split(args.mpiexec) or [local.mpiexec()]
            scripts = {} if here else remote.write(study, asked, todo, args.one_allocation,
                                                   os.getcwd())
            if args.dry_run:
                commands = [shlex.join(local.command(study, case, launcher)) for case in todo]
                dry = {"commands": commands} if here else {"scripts": [*scripts.values()]}
            elif here:
                limit_s = slurm.seconds(asked.time) if asked.time else None
                tell.begin(len(todo))
                for case in todo:
                    tell.running(case)
                    states[case] = local.run(study, case, states[case], launcher, limit_s)
                    tell.ended(case, states[case])
            else:
                _run_by_slurm(study, states, scripts, args.no_wait, tell)
        return _report(args, study, states, dry)


def _cautions(study: Study, measured_here: bool) -> list[str]:
    """What makes predictions or measurements uncertain."""
    guess = (f"machine {study.machine.name} is not calibrated: predictions are estimates; write "
             f"{os.path.join(study.out, site.BESIDE)} with: hpcpar calibrate -o")
    return [guess] * (not study.machine.compute) + (slowdowns(1) if measured_here else [])


def _report(args: argparse.Namespace, study: Study, states: dict[Case, Status],
            dry: dict[str, list[str]]) -> int:
    """Writes and prints the report; returns the exit status."""
    points, document, missing = report.write(study, states)
    if args.json:
        options.print_json(document | dry)
    elif args.csv:
        options.print_csv(document["points"])
    else:
        show_points(report.title(study), points, args.wide)
        _print(dry)
    if missing:
        say(missing)
    say(f"report: {os.path.join(study.out, report.PAGE)}")
    failed = [case for case, status in states.items() if status.state == FAILED]
    if failed:
        raise RunError(f"{len(failed)} of {len(states)} cases failed "
                       f"({', '.join(case.name for case in failed)}); --retry runs them again")
    return 0


def _interrupt(sign: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _study(args: argparse.Namespace, out: str) -> Study:
    spec = options.network_spec(args.network, args.input, args.classes)
    network = spec.build()
    chosen = {"gather": "lazy", "overlap": args.overlap or "full", "dtype": args.dtype,
              "bucket_bytes": None}
    strategies = tuple(dict.fromkeys(s.strip() for s in args.strategies.split(",") if s.strip()))
    if not strategies:
        raise InputError("--strategies names none; leave it out, or give some, as in auto,data")
    ranks = tuple(sorted(set(args.ranks)))
    largest = weak_batch(args.batch, ranks[-1] if args.kind == "weak" else 1)
    data = os.path.abspath(args.data or os.path.join(out, "data.h5"))
    if args.data:
        samples = _samples(network, data)
    else:
        samples = _synthetic(network, data, BATCHES * largest, args.dry_run)
    return Study(args.kind, spec, _machine(args), ranks, strategies, args.batch, chosen,
                 data, samples, args.steps or (0 if args.epochs else STEPS), args.epochs or 1,
                 args.device, out, args.direct)


def _machine(args: argparse.Namespace) -> Machine:
    """The machine, which computes on the device that the runs will use."""
    machine = files.load(args.machine)
    if (machine.kind, args.device) in (("gpu", "cpu"), ("cpu", "gpu")):
        raise InputError(f"ranks of machine {machine.name} compute on {machine.kind}s, --device is "
                         f"{args.device}: give --device {machine.kind}, or another --machine")
    return machine


def _synthetic(network: Network, path: str, samples: int, dry: bool) -> int:
    """Makes synthetic data where there are too few; returns the number of samples.

    A dry run makes none. A sweep over more ranks needs more samples.
    """
    there = _samples(network, path) if os.path.exists(path) else 0
    if there >= samples:
        return there
    if not dry:
        say(f"making {samples} synthetic images in {path}")
        targets = network.classes if isinstance(network.layers[-1], MeanSquaredError) else 0
        synthetic(path, network.image_shape, network.classes, samples, targets=targets)
    return samples


def _samples(network: Network, path: str) -> int:
    """The number of samples of a data file; checks that it suits the network."""
    count, *shape = dataset.info(path)["images"]["shape"]
    if tuple(shape) != network.image_shape:
        has, takes = shape_text(shape), shape_text(network.image_shape)
        raise InputError(f"data file {path} holds images {has}, the network takes {takes}; make "
                         f"other data, or give --input {has}")
    return int(count)


def _print(dry: dict[str, list[str]]) -> None:
    """Prints the commands, or the scripts, of a dry run."""
    for line in dry.get("commands", ()):
        print(line)
    for path in dry.get("scripts", ()):
        with open(path, encoding="utf-8") as f:
            print(f"# {path}\n{f.read()}")


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
