"""Cases run by Slurm: scripts written, jobs submitted, awaited and collected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpcpar.sweep import folder, queue
from hpcpar.sweep.collect import finished
from hpcpar.sweep.folder import SUBMITTED, Status
from hpcpar.sweep.scripts import Job, jobs, script
from hpcpar.sweep.slurm import Slurm
from hpcpar.sweep.study import Case, Study

#: Seconds between two looks, from the first on; they grow by a fifth each time nothing has
#: happened.
_FIRST_S, _MOST_S = 0.5, 15.0
#: Looks at which a job must be found ended before a case without an exit status has failed: shared
#: file systems are late.
_LOOKS = 3

States = dict[Case, Status]


def write(study: Study, slurm: Slurm, cases: Sequence[Case], one_allocation: bool,
          directory: str) -> dict[Job, str]:
    """Write the batch scripts of cases; returns their paths."""
    place = os.path.join(study.out, "slurm")
    folder.make(place)
    out = {}
    for job in jobs(cases, one_allocation):
        out[job] = os.path.join(place, f"{job.name}.sbatch")
        folder.write_text(out[job], script(study, slurm, job, directory))
    return out


def submit(study: Study, scripts: dict[Job, str], states: States,
           run: queue.Runner = queue.run) -> list[str]:
    """Submit scripts and note their jobs; returns the jobs' numbers."""
    out = []
    for job, path in scripts.items():
        for case in job.cases:
            folder.remove(study.folder(case), (folder.EXIT, folder.RECORD, folder.LOG))
        number = queue.submit(path, run)
        out.append(number)
        for case in job.cases:
            states[case] = replace(states[case], state=SUBMITTED, reason="", job=number)
            folder.write_status(study.folder(case), states[case])
    return out


class Watch:
    """Looks after submitted cases until each has ended."""

    def __init__(self, study: Study, states: States, run: queue.Runner = queue.run) -> None:
        self.study, self.states, self._run = study, states, run
        self._missed: dict[Case, int] = {}

    @property
    def open(self) -> list[Case]:
        """Cases that have not ended."""
        return [case for case, status in self.states.items() if status.state == SUBMITTED]

    @property
    def jobs(self) -> list[str]:
        """Numbers of their jobs."""
        return list(dict.fromkeys(self.states[case].job for case in self.open))

    def look(self) -> tuple[list[Case], dict[str, str]]:
        """Collect what has ended; returns these cases, and the states of the jobs of the others."""
        states = queue.states(self.jobs, self._run)
        out = []
        for case in self.open:
            status, path = self.states[case], self.study.folder(case)
            job = states.get(status.job, "")
            why = ""
            if folder.exit_status(path) is None:
                self._missed[case] = self._missed.get(case, 0) + 1 if queue.ended(job) else 0
                if self._missed[case] < _LOOKS:
                    continue
                why = f"job {status.job} ended ({job}) before this case did"
            self.states[case] = finished(self.study, case, status, why)
            folder.write_status(path, self.states[case])
            out.append(case)
        return out, states

    def wait(self, ended: Callable[[Case], None],
             waiting: Callable[[dict[str, str]], None]) -> None:
        """Until every case has ended.

        Parameters
        ----------
        ended : callable
            Called with every case that has.
        waiting : callable
            Called between looks with the states of jobs.
        """
        pause = _FIRST_S
        while self.open:
            cases, jobs = self.look()
            for case in cases:
                ended(case)
            # jobs that are over have only their cases' files left to come
            soon = cases or any(queue.ended(state) for state in jobs.values())
            pause = _FIRST_S if soon else min(_MOST_S, 1.2 * pause)
            waiting(jobs)
            if self.open:
                time.sleep(pause)
