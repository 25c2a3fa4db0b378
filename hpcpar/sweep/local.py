"""Runs cases on this machine with mpiexec, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from hpcpar import child
from hpcpar.errors import InputError
from hpcpar.files import write_text
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.sweep import folder
from hpcpar.sweep.collect import finished
from hpcpar.sweep.folder import PLANNED, RUNNING, Status
from hpcpar.sweep.scripts import device_options, layers_options, run_options
from hpcpar.sweep.study import Case, Study

#: Seconds that ranks have to end after each signal.
_GRACE_S = 5.0


def command(study: Study, case: Case, launcher: Sequence[str]) -> list[str]:
    """The command line that runs, or simulates, a case."""
    path = study.folder(case)
    named = ["--plan", os.path.join(path, folder.PLAN), "--out", os.path.join(path, folder.RECORD)]
    if study.simulates(case):
        return [*child.command(), "simulate", *named, *layers_options(study)]
    return [*launcher, "-n", str(case.ranks), *child.command(), "run", *named, *run_options(study)]


def calibrate(study: Study, states: Mapping[Case, Status], launcher: Sequence[str]) -> Machine:
    """Measures this machine on every number of ranks, for the plans of the cases that can run.

    Links are those of the largest size, computing that of all. The machine is saved in the sweep's
    folder.

    Raises
    ------
    InputError
        A calibration fails.
    """
    path, log = (os.path.join(study.out, name) for name in (folder.MACHINE, "calibration.log"))
    machine, compute = study.machine, dict[str, float]()
    for ranks in study.ranks:
        made = [os.path.join(study.folder(case), folder.PLAN) for case, status in states.items()
                if case.ranks == ranks and status.state == PLANNED]
        if made:
            words = [*launcher, "-n", str(ranks), *child.command(), "calibrate", "-o", path,
                     "--for", *made, *device_options(study), *layers_options(study)]
            if _wait(words, log, None):
                raise InputError(f"calibration on {ranks} ranks: {folder.last_line(log)}; "
                                 "--machine names a machine that needs none (local: a guess)")
            machine = files.load(path)
            compute |= machine.compute
    machine = replace(machine, name="this machine", compute=compute)
    files.save(machine, path)
    return machine


def run(study: Study, case: Case, status: Status, launcher: Sequence[str],
        limit_s: float | None) -> Status:
    """Runs a case and writes its status; after `limit_s` the case is killed.

    Parameters
    ----------
    launcher : sequence of str
        The words before ``-n``.

    Raises
    ------
    InputError
        The launcher cannot be started.
    """
    path = study.folder(case)
    folder.clear(path)
    folder.write_status(path, replace(status, state=RUNNING, reason=""))
    try:
        ended = _wait(command(study, case, launcher), os.path.join(path, folder.LOG), limit_s)
        write_text(os.path.join(path, folder.EXIT), f"{124 if ended is None else ended}\n",
                   "exit status")
    except BaseException:
        folder.write_status(path, replace(status, state=PLANNED, reason=""))
        raise
    timeout = f"it was ended after its time, {limit_s:g} s" if ended is None else ""
    return folder.write_status(path, finished(study, case, status, timeout))


def _wait(words: list[str], log: str, limit_s: float | None) -> int | None:
    """Runs a command; returns its exit status, None after a timeout.

    The command has ended when this function returns or raises.
    """
    with open(log, "wb") as f:
        try:
            # in its own session, so that Ctrl-C reaches only the sweep, which then ends the ranks
            job = subprocess.Popen(words, stdout=f, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as err:
            raise InputError(f"cannot start {words[0]} ({err.strerror}); name the launcher with "
                             "--mpiexec") from err
    try:
        return job.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if job.poll() is None:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Ends a launcher and the processes that it started here."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(job.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            job.wait(_GRACE_S)
            return
