"""Progress of a sweep: a bar on a terminal, and a line for every case that has ended."""

from __future__ import annotations

import sys
from collections import Counter
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from hpcpar.report.tables import console
from hpcpar.sweep.folder import DONE, Status
from hpcpar.sweep.study import Case


class SweepProgress:
    """Reports the progress of a sweep on stderr."""

    def __init__(self) -> None:
        self._bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(),
                             MofNCompleteColumn(), TimeElapsedColumn(), console=console(),
                             disable=not sys.stderr.isatty(), transient=True)
        self._task: TaskID | None = None
        self._ended = self._total = 0

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def planning(self, case: Case) -> None:
        """Call before a case is planned."""
        self._describe(f"planning {case.name}")

    def begin(self, cases: int) -> None:
        """Call before the first of `cases` cases runs."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._total = cases

    def running(self, case: Case) -> None:
        """Call before a case runs."""
        self._describe(f"running {case.name}")

    def jobs(self, states: dict[str, str]) -> None:
        """Call between polls of Slurm, with the states of the jobs."""
        counts = Counter(states.values())
        self._describe("jobs: " + (", ".join(f"{n} {state.lower()}" for state, n in counts.items())
                                   or "no answer from Slurm"))

    def ended(self, case: Case, status: Status) -> None:
        """Call after a case has ended."""
        self._ended += 1
        self.say(f"{self._ended}/{self._total}  {case.name}  {status.state}"
                 + (f": {status.reason}" if status.state != DONE else ""))
        if self._task is not None:
            self._bar.advance(self._task)

    def _describe(self, text: str) -> None:
        if self._task is None:
            self._task = self._bar.add_task(text, total=self._total or None, completed=self._ended)
        else:
            self._bar.update(self._task, description=text)
