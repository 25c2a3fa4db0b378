"""``hpcpar run --elastic``: starts the job, and continues without ranks that are lost.

* A rank is lost if a signal ends it (its watcher leaves a note), if others wait for it in vain, or
  if the launcher fails. Training errors and bad input are not retried.
* A lost rank's slot stays empty for `return_s` seconds. Then the supervisor asks the job to stop
  (status 75, after a checkpoint), and starts it again with that slot.
* Each start resumes from the newest checkpoint. On fewer ranks, it takes the fastest plan that the
  search finds for the same network, batch, machine and kind of training.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from hpcpar.api.plan import plan as best_plan
from hpcpar.api.sources import plan_and_machine
from hpcpar.cli.launch import die_with, job_environment, without
from hpcpar.cli.run_options import RunCommand, check_training
from hpcpar.comm import lost
from hpcpar.errors import InputError
from hpcpar.io.files import lock, temporary_of
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.process import child
from hpcpar.process.launchers import mpiexec, pmi_of, usual_library
from hpcpar.process.signals import STATUS, handle
from hpcpar.report.tables import say
from hpcpar.report.tables.answer import plural
from hpcpar.schedule.runnable import require

#: Consecutive jobs that are lost without a new checkpoint, before giving up.
MOST_FAILURES = 3
#: Seconds between two polls of the job.
_POLL_S = 0.05
#: Polls between two requests to stop: a launcher that is just starting may lose the first.
_POLLS_PER_REQUEST = 100
#: Asks a job to stop. All launchers forward it; after a SIGTERM, srun would kill the ranks.
_STOP = signal.SIGUSR1
#: Seconds that ranks have to save their work after their supervisor is gone.
_SAVING_S = 10.0
#: Options that the supervisor sets for each job, with their number of values.
_OWN = {"-n": 1, "--plan": 1, "--resume": 1, "--elastic-return": 1, "--elastic": 0}


def supervise(args: RunCommand, argv: Sequence[str]) -> int:
    """Runs the training to its end; returns the exit status of the last job.

    Raises
    ------
    InputError
        No plan fits the remaining ranks.
    """
    check_training(args)
    given = plans.load(args.plan)
    if args.start not in (None, given.ranks):
        raise InputError(f"the plan is for {given.ranks} ranks, but -n asks for {args.start}; drop "
                         f"-n, or give -n {given.ranks}")
    return _Supervisor(without(list(argv), _OWN), given, args.plan, args.checkpoint, args.resume,
                       args.elastic_return).run()


def plan_for(given: Plan, ranks: int) -> Plan:
    """The fastest plan of the same training on at most `ranks` ranks.

    Raises
    ------
    InputError
        No plan fits in memory.
    """
    if ranks >= given.ranks:
        return given
    network, (_, machine) = given.network.build(), plan_and_machine(given, None)
    for count in range(ranks, 0, -1):
        try:
            found = best_plan(network, count, given.batch, machine,
                              overlap=given.overlap, precision=given.precision,
                              optimizer=given.optimizer, batch_norm=given.batch_norm)
        except InputError:
            continue
        for candidate in found.candidates:
            if candidate.prediction.fits and _runs(candidate.plan):
                return candidate.plan
    raise InputError(f"no plan for the {plural(ranks, 'rank')} left fits in memory; wait for lost "
                     "ranks to return")


def _runs(plan: Plan) -> bool:
    try:
        require(plan.network.build(), plan)
    except InputError:
        return False
    return True


def _holds(path: str, plan: Plan) -> bool:
    """Whether a file holds this plan."""
    try:
        return plans.load(path) == plan
    except InputError:
        return False


@dataclass
class _Supervisor:
    words: list[str]
    given: Plan
    path: str
    checkpoint: str
    resume: str
    return_s: float
    #: Times at which lost slots count as back.
    back_s: list[float] = field(default_factory=list)
    #: Signals that asked this program to stop.
    asked: list[int] = field(default_factory=list)
    #: The job was asked to stop because lost ranks are back.
    restarting: bool = False

    def run(self) -> int:
        """Runs one job after the other."""
        handle(self._note)
        self._wait_for_others()
        first, failures, words = self._stamp(), 0, self.words
        while True:
            if self.asked:
                say(f"elastic: stopped by {signal.Signals(self.asked[0]).name}")
                return STATUS
            plan = plan_for(self.given, int(self.given.ranks) - len(self.back_s))
            before = self._stamp()
            resume = self.checkpoint if before != first else self.resume
            status, gone = self._one_job(words, plan, resume)
            words = [*self.words, "--overwrite"]  # what the job before it wrote
            stopped = self.restarting and not gone
            if status in (0, 2) or (status in (1, STATUS) and not gone and not stopped):
                return status
            if self.asked:  # during the end of the launcher or of a lost rank
                continue
            if not stopped:
                failures = failures + 1 if self._stamp() == before else 1
                if failures == MOST_FAILURES:
                    say(f"elastic: giving up: {MOST_FAILURES} jobs in a row were lost without a "
                        "new checkpoint")
                    return 1
                now = time.monotonic()
                self.back_s += [now + self.return_s] * min(max(1, len(gone)), self._left() - 1)
                what = gone[0] if gone else f"the launcher ended with {status}"
                say(f"elastic: {what}: continuing with {plural(self._left(), 'rank')}")
            self.back_s = [s for s in self.back_s if s > time.monotonic()]

    def _wait_for_others(self) -> None:
        """Waits while ranks of an ended supervisor save their work."""
        deadline = time.monotonic() + _SAVING_S
        while time.monotonic() < deadline and not self.asked:
            with suppress(InputError), lock(self.checkpoint, "checkpoint"):
                return
            time.sleep(_POLL_S)

    def _left(self) -> int:
        return int(self.given.ranks) - len(self.back_s)

    def _stamp(self) -> int:
        """A number that changes with every checkpoint; 0 without one."""
        return os.stat(self.checkpoint).st_mtime_ns if os.path.exists(self.checkpoint) else 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked.append(number)

    def _plan_file(self, plan: Plan) -> str:
        """The first file beside the checkpoint that has this plan, or is new and gets it."""
        stem = f"{os.path.splitext(self.checkpoint)[0]}.p{plan.ranks}"
        names = (f"{stem}{f'.{n}' if n else ''}.plan.json" for n in itertools.count())
        path = next(name for name in names if not os.path.lexists(name) or _holds(name, plan))
        if not os.path.lexists(path):
            plans.save(plan, path)
        return path

    def _one_job(self, words: list[str], plan: Plan, resume: str) -> tuple[int, list[str]]:
        """The exit status of a job, and a line for each lost rank."""
        path = self.path if plan is self.given else self._plan_file(plan)
        command = [*launcher(), "-n", str(plan.ranks), *child.command(), *words,
                   "--plan", path, *(["--resume", resume] if resume else [])]
        say(f"elastic: {plural(int(plan.ranks), 'rank')}, {plan.strategy}"
            f"{f', from {resume}' if resume else ''}")
        # a folder in which all nodes can write
        name = temporary_of(os.path.realpath(self.checkpoint))
        with open(name, "x+", encoding="utf-8") as notes:
            try:
                # in its own session, it gets signals of the terminal once, through this program;
                # if this program ends, the launcher is asked to stop
                job = subprocess.Popen(command, start_new_session=True,
                                       preexec_fn=partial(die_with, os.getpid(), _STOP),
                                       env=job_environment() | {lost.VARIABLE: name})
                status, lines = self._wait(job), notes.read().splitlines()
            finally:
                os.unlink(name)
        return status, [line for line in lines if lost.KILLED in line] or lines[:1]

    def _wait(self, job: subprocess.Popen[bytes]) -> int:
        self.restarting, polls = False, 0
        while job.poll() is None:
            if not self.restarting and any(s <= time.monotonic() for s in self.back_s):
                say("elastic: lost ranks are back")
                self.restarting = True
            if self.asked or self.restarting:
                if polls % _POLLS_PER_REQUEST == 0:
                    job.send_signal(_STOP)
                polls += 1
            time.sleep(_POLL_S)
        return job.returncode if job.returncode >= 0 else 128 - job.returncode


def launcher() -> list[str]:
    """The launcher's command line before ``-n``: srun in a Slurm job, else mpiexec."""
    if "SLURM_JOB_ID" in os.environ:
        return ["srun", f"--mpi={pmi_of(usual_library())}", "--kill-on-bad-exit=1"]
    return [mpiexec()]
