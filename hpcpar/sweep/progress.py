"""Progress of a sweep: a bar on a terminal, and a line for every case that has ended."""

from __future__ import annotations

from collections import Counter

from hpcpar.report.progress import ProgressBar
from hpcpar.sweep.folder import DONE, Status
from hpcpar.sweep.study import Case


class SweepProgress(ProgressBar):
    """Reports the progress of a sweep on stderr."""

    def __init__(self) -> None:
        super().__init__(auto_refresh=True)
        self._ended = 0

    def _doing(self, what: str) -> None:
        self.update(self._task, description=what)

    def planning(self, case: Case) -> None:
        """Call before a case is planned."""
        self._doing(f"planning {case.name}")

    def begin(self, cases: int) -> None:
        """Call before the first of `cases` cases runs."""
        self.reset(self._task, total=cases)

    def running(self, case: Case) -> None:
        """Call before a case runs."""
        self._doing(f"running {case.name}")

    def jobs(self, states: dict[str, str]) -> None:
        """Call between polls of the batch system, with the states of the jobs."""
        counts = [f"{n} {state.lower()}" for state, n in Counter(states.values()).items()]
        self._doing(f"jobs: {', '.join(counts) or 'no answer'}")

    def ended(self, case: Case, status: Status) -> None:
        """Call after a case has ended."""
        self._ended += 1
        reason = "" if status.state == DONE else f": {status.reason}"
        total = f"{self.tasks[0].total:.0f}"
        self.say(f"{self._ended}/{total}  {case.name}  {status.state}{reason}")
        self.advance(self._task)
