"""``hpcpar sweep strong|weak``: plans, runs and reports a scaling study."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import NoReturn

from hpcpar.api.options import ModuleOptions
from hpcpar.api.sweep import SweepArguments, SweepResult, run_sweep, sweep_report
from hpcpar.cli.options import ResultOptions
from hpcpar.cli.site import config_path, read
from hpcpar.errors import RunError
from hpcpar.options.fields import flag, required
from hpcpar.process.signals import handle
from hpcpar.report.tables import say
from hpcpar.report.tables.sweep_table import show_points
from hpcpar.sweep.folder import FAILED


@dataclass(frozen=True)
class StrongCommand(ResultOptions, SweepArguments):
    """Strong scaling: --batch is the total batch, the same at every size."""

    example = "hpcpar sweep strong --network lenet5 --ranks 1,2 --batch 64 --out strong --dry-run"
    kind: str = field(default="strong", init=False)
    yes: bool = flag("submit batch jobs without asking on a terminal", section="batch jobs")

    def run(self) -> SweepResult:
        """Runs the study with the site's options."""
        return run_sweep(replace(self, site=(config_path(), read().job)), self._agreed)

    def _agreed(self, question: str) -> bool:
        """Asks on a terminal; elsewhere nobody can answer, and the answer is yes."""
        if self.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@dataclass(frozen=True)
class WeakCommand(StrongCommand):
    """Weak scaling: --batch is the batch of each rank."""

    example = "hpcpar sweep weak --network lenet5 --ranks 1,2 --batch 32 --out weak --dry-run"
    kind: str = field(default="weak", init=False)


@dataclass(frozen=True, kw_only=True)
class ReportCommand(ResultOptions, ModuleOptions):
    """Write the report of a finished or partial sweep again."""

    example = "hpcpar sweep report strong"
    out: str = required(str, "folder of the sweep", "FOLDER", names=("out",))

    def run(self) -> SweepResult:
        """The study in its current state."""
        return sweep_report(self.out)


KINDS = {"strong": StrongCommand, "weak": WeakCommand, "report": ReportCommand}


def main(args: StrongCommand | ReportCommand) -> int:
    # as with Ctrl-C, the ranks end, and the folder stays consistent
    handle(_interrupt)
    result = args.run()
    args.show(result.to_json, result.rows, lambda: _show(result, args.wide))
    if result.note:
        say(result.note)
    say(f"report: {result.page}")
    failed = [case.name for case, status in result.states.items() if status.state == FAILED]
    if failed:
        raise RunError(f"{len(failed)} of {len(result.states)} cases failed ({', '.join(failed)}); "
                       "add --retry to run them again")
    return 0


def _interrupt(sign: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _show(result: SweepResult, wide: bool) -> None:
    """Prints the table, and a dry run's commands or scripts."""
    show_points(result.title, result.points, wide)
    for line in result.dry_run.get("commands", ()):
        print(line)
    for path in result.dry_run.get("scripts", ()):
        with open(path, encoding="utf-8") as f:
            print(f"# {path}\n{f.read()}")
