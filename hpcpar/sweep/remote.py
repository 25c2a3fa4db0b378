"""Runs cases by a batch system: writes scripts, submits jobs, waits and collects results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpcpar.io.files import make_folder, write_text
from hpcpar.sweep import folder, queue
from hpcpar.sweep.batch_options import BatchOptions
from hpcpar.sweep.collect import finished
from hpcpar.sweep.folder import SUBMITTED, Status
from hpcpar.sweep.schedulers import Scheduler
from hpcpar.sweep.scripts import BatchJob, jobs, script
from hpcpar.sweep.study import Case, Study

#: First and longest time (s) between two polls; it grows by a fifth while nothing happens.
_FIRST_S, _MOST_S = 0.5, 15.0
#: Polls that find a job ended before a case without an exit status counts as failed: shared file
#: systems show files late.
_POLLS = 3

States = dict[Case, Status]


def write(study: Study, system: Scheduler, asked: BatchOptions, cases: Sequence[Case],
          one_allocation: bool, directory: str) -> dict[BatchJob, str]:
    """Writes the batch scripts of cases; returns their paths."""
    make_folder(os.path.join(study.out, folder.JOBS))
    out = {}
    for job in jobs(cases, one_allocation):
        out[job] = os.path.join(study.out, folder.JOBS, f"{job.name}.sh")
        write_text(out[job], script(study, system, asked, job, directory), "batch script")
    return out


def submit(study: Study, system: Scheduler, scripts: dict[BatchJob, str],
           states: States) -> list[str]:
    """Submits scripts and writes the cases' status; returns the jobs' numbers."""
    out = []
    for job, path in scripts.items():
        for case in job.cases:
            folder.clear(study.folder(case))
        number = queue.submit(system, path)
        out.append(number)
        for case in job.cases:
            status = replace(states[case], state=SUBMITTED, reason="", launcher=system.name,
                             job=number, log=study.job_log(job.name))
            states[case] = folder.write_status(study.folder(case), status)
    return out


class JobWatcher:
    """Polls submitted cases until each has ended."""

    def __init__(self, study: Study, system: Scheduler, states: States) -> None:
        self.study, self.system, self.states = study, system, states
        self._missed: dict[Case, int] = {}

    @property
    def open(self) -> list[Case]:
        """Cases in jobs of this batch system that have not ended."""
        return [case for case, status in self.states.items()
                if (status.state, status.launcher) == (SUBMITTED, self.system.name)]

    @property
    def jobs(self) -> list[str]:
        """Numbers of the jobs of open cases."""
        return list(dict.fromkeys(self.states[case].job for case in self.open))

    def poll(self) -> tuple[list[Case], dict[str, str]]:
        """Collects the cases that have ended; returns them, and the states of all open jobs."""
        states = queue.states(self.system, self.jobs)
        out = []
        for case in self.open:
            status, path = self.states[case], self.study.folder(case)
            job = states.get(status.job, "")
            why = ""
            if folder.exit_status(path) is None:
                over = queue.ended(self.system, job)
                self._missed[case] = self._missed.get(case, 0) + 1 if over else 0
                if self._missed[case] < _POLLS:
                    continue
                why = f"job {status.job} ended ({job}) before this case did"
            self.states[case] = folder.write_status(path, finished(self.study, case, status, why))
            out.append(case)
        return out, states

    def wait(self, ended: Callable[[Case], None],
             waiting: Callable[[dict[str, str]], None]) -> None:
        """Waits until every case has ended.

        Calls `ended` with every case, and between polls `waiting` with the states of jobs.
        """
        pause = _FIRST_S
        while self.open:
            cases, jobs = self.poll()
            for case in cases:
                ended(case)
            # of ended jobs, only the files are still to appear
            soon = cases or any(queue.ended(self.system, state) for state in jobs.values())
            pause = _FIRST_S if soon else min(_MOST_S, 1.2 * pause)
            waiting(jobs)
            if self.open:
                time.sleep(pause)
