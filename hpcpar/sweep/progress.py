"""Progress of a sweep: a bar on a terminal, and a line for every case that has ended."""

from __future__ import annotations

import sys
from collections import Counter

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpcpar.report.tables import console
from hpcpar.sweep.folder import DONE, Status
from hpcpar.sweep.study import Case


class SweepProgress(Progress):
    """Reports the progress of a sweep on stderr."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}", markup=False), BarColumn(),
                         MofNCompleteColumn(), TimeElapsedColumn(), console=console(),
                         disable=not sys.stderr.isatty(), transient=True)
        self._task = self.add_task("", total=None)
        self._ended = self._total = 0

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def planning(self, case: Case) -> None:
        """Call before a case is planned."""
        self.update(self._task, description=f"planning {case.name}")

    def begin(self, cases: int) -> None:
        """Call before the first of `cases` cases runs."""
        self._total = cases
        self.reset(self._task, total=cases)

    def running(self, case: Case) -> None:
        """Call before a case runs."""
        self.update(self._task, description=f"running {case.name}")

    def jobs(self, states: dict[str, str]) -> None:
        """Call between polls of Slurm, with the states of the jobs."""
        counts = [f"{n} {state.lower()}" for state, n in Counter(states.values()).items()]
        self.update(self._task,
                    description=f"jobs: {', '.join(counts) or 'no answer from Slurm'}")

    def ended(self, case: Case, status: Status) -> None:
        """Call after a case has ended."""
        self._ended += 1
        reason = "" if status.state == DONE else f": {status.reason}"
        self.say(f"{self._ended}/{self._total}  {case.name}  {status.state}{reason}")
        self.advance(self._task)
