"""``hpcpar sweep strong|weak``: plans, runs and reports a scaling study."""

from __future__ import annotations

import argparse
import signal
from types import FrameType
from typing import NoReturn

from hpcpar.api.sweep import BATCHES, LAUNCHERS, STEPS, sweep, sweep_report
from hpcpar.cli import options
from hpcpar.cli.site import read
from hpcpar.errors import RunError
from hpcpar.report.sweep_table import show_points
from hpcpar.report.tables import say
from hpcpar.signals import handle
from hpcpar.sweep.folder import FAILED
from hpcpar.sweep.study import KINDS

#: The command that draws again.
REPORT = "report"


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join((*KINDS, REPORT)))
    again = kinds.add_parser(REPORT, help="draw the report of a finished or partial sweep again",
                             allow_abbrev=False)
    again.add_argument("out", metavar="FOLDER", help="folder of the sweep")
    options.add_layers(again)
    options.add_output(again)
    for kind, batch in zip(KINDS, ("over all ranks, the same at every size", "of each rank"),
                           strict=True):
        p = kinds.add_parser(kind, help=f"{kind} scaling: --batch is {batch}", allow_abbrev=False)
        options.add_network(p)
        options.add_machine(p)
        p.add_argument("--ranks", type=options.several_ranks, required=True, metavar="P,P,...",
                       help="numbers of ranks")
        p.add_argument("--simulate", type=options.several_ranks, metavar="P,P,...",
                       help="numbers of ranks that are simulated instead of run, beside the "
                       "measured ones")
        p.add_argument("--strategies", metavar="S,S,...",
                       help="each at each size; 'grid:*' stands for every grid "
                       "(default %(default)s)")
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
            "--data", metavar="FILE.h5",
            help=f"data file (default: synthetic, {BATCHES} of the largest mini-batches)",
        )
        options.add_gpu(p)
        p.add_argument("--out", required=True, metavar="FOLDER",
                       help="folder of the sweep: the same command goes on where it stopped")
        p.add_argument("--retry", action="store_true", help="also run again what has failed")
        p.add_argument("--dry-run", action="store_true",
                       help="plan, and print the commands or batch scripts; run nothing")
        p.add_argument("--launcher", **options.one_of(LAUNCHERS),
                       help="start ranks here with mpiexec, or submit batch jobs "
                       "(default %(default)s)")
        p.add_argument("--mpiexec", metavar="COMMAND",
                       help="local: what stands before -n P (default: the mpiexec beside this "
                       "Python, or on PATH)")
        p.add_argument("--no-wait", action="store_true",
                       help="Slurm: submit, collect what is there, and return")
        p.add_argument("--one-allocation", action="store_true",
                       help="Slurm: one job for all sizes (default: one for each)")
        _add_slurm(p)
        options.add_output(p)
        options.add_defaults(p, sweep)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    """Adds the options that a TOML file may have as well."""
    parser.add_argument("--slurm", metavar="FILE.toml",
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
    # handled like Ctrl-C: the ranks are ended, and the folder stays consistent
    handle(_interrupt, (signal.SIGHUP,))
    if args.kind == REPORT:
        result = sweep_report(args.out)
    else:
        site = read()
        result = sweep(**options.arguments(args, sweep) | {"site": (site.path, site.slurm)})
    if args.json:
        options.print_json(result.to_json())
    elif args.csv:
        options.print_csv(result.rows())
    else:
        show_points(result.title, result.points, args.wide)
        _print(result.dry_run)
    if result.note:
        say(result.note)
    say(f"report: {result.page}")
    failed = [case.name for case, status in result.states.items() if status.state == FAILED]
    if failed:
        raise RunError(f"{len(failed)} of {len(result.states)} cases failed ({', '.join(failed)}); "
                       "--retry runs them again")
    return 0


def _interrupt(sign: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _print(dry: dict[str, list[str]]) -> None:
    """Prints the commands, or the scripts, of a dry run."""
    for line in dry.get("commands", ()):
        print(line)
    for path in dry.get("scripts", ()):
        with open(path, encoding="utf-8") as f:
            print(f"# {path}\n{f.read()}")
