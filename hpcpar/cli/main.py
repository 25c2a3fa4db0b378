"""The command line. It imports only the chosen command's module."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from hpcpar.cli import site
from hpcpar.cli.launch import limit_threads, start, started_rank, watch
from hpcpar.cli.parser import Parser
from hpcpar.errors import InputError, RunError, unknown, visible
from hpcpar.options import other_names
from hpcpar.options.fields import OptionGroup
from hpcpar.options.output_files import check_outputs
from hpcpar.process import signals
from hpcpar.process.launchers import whole_number
from hpcpar.version import __version__

#: Command -> its line in the help. The command's module defines ``main(options) -> int`` and the
#: dataclass of its options (``plan`` has `PlanCommand`), or one for each of its kinds in `KINDS`.
COMMANDS = {
    "networks": "list the built-in networks, or show a network layer by layer",
    "machines": "list the built-in machines, or show a machine",
    "plan": "find the best plan for a network on a machine, or the plan of one strategy",
    "predict": "predict the time and memory of plans without running them",
    "proposal": "write the page that applies for compute time: scaling, memory, node-hours",
    "simulate": "simulate a plan on all of its ranks, message by message",
    "export": "write a plan's programs, one per rank, for other simulators",
    "run": "train under a plan on MPI ranks, and record the run",
    "verify": "check that a plan trains as one rank does",
    "calibrate": "measure this machine's latency, bandwidth and compute times",
    "doctor": "check MPI, launcher, GPUs, threads and files, and say what to fix",
    "sweep": "run a scaling study: plan, run and report many cases",
    "compare": "compare predicted with measured time, by phase, layer and step",
    "trace": "write the timelines of a run, simulated and measured, for ui.perfetto.dev",
    "weights": "convert checkpoints to and from a PyTorch module's state_dict",
    "data": "make an HDF5 data file, or describe one",
}
#: Shells that shtab writes completion scripts for.
SHELLS = ("bash", "zsh", "tcsh")
#: Commands that compute on ranks. Their BLAS threads are limited before NumPy loads.
JOBS = ("run", "verify", "calibrate", "doctor")
#: Commands in which to look for an unknown option, likely ones first.
SEARCHED = ("plan", "run", *COMMANDS)


def parsers(*complete: str) -> tuple[Parser, Parser]:
    """The parser of all commands, and the last `complete` command's; only these have options."""
    top = chosen = Parser(prog="hpcpar", description=(
        "hpcpar: plan, predict, run and compare parallel training of convolutional networks."))
    top.add_argument("--version", action="version", version=f"hpcpar {__version__}")
    top.add_argument("--print-completion", choices=SHELLS, metavar="|".join(SHELLS),
                     help="print a completion script for this shell")
    commands = top.add_subparsers(dest="command", metavar="command", title="commands")
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, help=line, add_help=name in complete,
                                  description=f"{line[0].upper()}{line[1:]}.")
        if name in complete:
            chosen = sub
            module = importlib.import_module(f"hpcpar.cli.{name}")
            if hasattr(module, "KINDS"):
                _add_kinds(sub, module.KINDS)
            else:
                sub.fill(getattr(module, f"{name.capitalize()}Command"))
    return top, chosen


def _add_kinds(parser: Parser, kinds: dict[str, type[OptionGroup]]) -> None:
    """Adds a command's kinds with their options."""
    added = parser.add_subparsers(dest="kind", required=True, metavar="|".join(kinds))
    for kind, group in kinds.items():
        text = str(group.__doc__)
        added.add_parser(kind, help=f"{text[0].lower()}{text[1:]}".rstrip("."),
                         description=text).fill(group)
    parser.kinds = added.choices
    parser.epilog = parser.kinds[next(iter(kinds))].epilog


def _owner(option: str) -> str:
    """The command and kind that have this option, and its name; empty for none."""
    for name in SEARCHED:
        for kind, parser in parsers(name)[1].kinds.items():
            if option in (known := parser.options()):
                return " ".join(filter(None, (name, kind, known[option])))
    return ""


def load_own(argv: Sequence[str]) -> None:
    """Imports the modules of --layers, because other options may name what they define."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--layers", action="append", nargs="?")
    names = [name for name in first.parse_known_args(argv)[0].layers or () if name]
    if names:
        from hpcpar.network.source import load_modules

        load_modules(names)


def _dispatch(argv: Sequence[str]) -> int:
    for word in argv:
        if word.encode(errors="ignore").decode() != word:  # unprintable bytes
            raise InputError(f"the argument {word!r} is not valid UTF-8; rename the file")
    command = next((word for word in argv if not word.startswith("-")), None)
    if argv[:1] == ["--print-completion"]:
        command = None
    if command is not None and command not in COMMANDS:
        raise unknown("command", command, COMMANDS, other_names.COMMANDS)
    watched = command in JOBS and watch()
    if command != "run" and not watched:
        signals.release()  # in a job, requests wait until MPI has started on all ranks
    if command in JOBS:
        limit_threads()
    load_own(argv)
    top, chosen = parsers(*(() if command is None else (command,)))
    if command is not None:
        chosen.check_options(argv[list(argv).index(command) + 1:], _owner)
    given = vars(top.parse_args(argv))
    shell = given.pop("print_completion")
    if shell:
        import shtab

        print(shtab.complete(parsers(*COMMANDS)[0], shell))
        return 0
    if given.pop("command") is None or command is None:
        top.print_help(sys.stderr)
        return 2
    given.pop("kind", None)
    options = given.pop("group")(**given)
    options.check_given(given)
    check_outputs(options)
    if getattr(options, "elastic", False):
        from hpcpar.cli.elastic import supervise

        return supervise(options, argv)
    if getattr(options, "start", None):
        from hpcpar.process.launchers import mpiexec

        start(options.start, argv, mpiexec())
    options = site.fill(options, command, given)
    return int(importlib.import_module(f"hpcpar.cli.{command}").main(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 success, 1 a failed run, 2 bad input."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; reserve its file number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for name in ("COLUMNS", "LINES"):
        if whole_number(name) is None:  # Rich accepts '²' as a number
            os.environ.pop(name, None)
    try:
        status = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except InputError as err:
        return _fail(err, 2)
    except RunError as err:
        return _fail(err, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except OSError as err:
        if err.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # discard buffered output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # a reader that closes a pipe is not an error
        closed = err.errno == errno.EPIPE
        return 0 if closed else _fail(f"cannot write the results: {err.strerror}", 1)


def _fail(error: object, status: int) -> int:
    line = visible(" ".join(str(error).split()))
    if started_rank() == 0:  # all ranks raise the errors that they share
        print(f"hpcpar: {line}", file=sys.stderr, flush=True)
    return status
