"""Runs cases on this machine with mpiexec, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.process import child, launchers
from hpcpar.sweep import folder
from hpcpar.sweep.collect import finished
from hpcpar.sweep.folder import PLANNED, RUNNING, Status
from hpcpar.sweep.scripts import device_options, layers_options, run_options
from hpcpar.sweep.study import Case, Study


def command(study: Study, case: Case, launcher: Sequence[str]) -> list[str]:
    """The command line that runs, or simulates, a case."""
    path = study.folder(case)
    named = ["--plan", os.path.join(path, folder.PLAN), "--out", os.path.join(path, folder.RECORD)]
    if study.simulates(case):
        return [*child.command(), "simulate", *named, *layers_options(study)]
    return [*launcher, "-n", str(case.ranks), *child.command(), "run", *named, *run_options(study)]


def calibrate(study: Study, states: Mapping[Case, Status], launcher: Sequence[str]) -> Machine:
    """Measures this machine on every number of ranks, for the plans of the cases that can run.

    The largest size gives the links, all sizes give compute times. The machine is saved in the
    sweep's folder.

    Raises
    ------
    InputError
        A calibration fails.
    """
    path, log = (os.path.join(study.out, name) for name in (folder.MACHINE,
                                                          folder.CALIBRATION_LOG))
    machine, compute = study.machine, dict[str, float]()
    for ranks in study.ranks:
        made = [os.path.join(study.folder(case), folder.PLAN) for case, status in states.items()
                if case.ranks == ranks and status.state == PLANNED]
        if made:
            words = [*launcher, "-n", str(ranks), *child.command(), "calibrate", "-o", path,
                     "--for", *made, *device_options(study), *layers_options(study)]
            if launchers.run(words, log, None):
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
        words, log = command(study, case, launcher), os.path.join(path, folder.LOG)
        ended = launchers.run(words, log, limit_s)
        write_text(os.path.join(path, folder.EXIT), f"{124 if ended is None else ended}\n",
                   "exit status")
    except BaseException:
        folder.write_status(path, replace(status, state=PLANNED, reason=""))
        raise
    timeout = f"it was ended after its time, {limit_s:g} s" if ended is None else ""
    return folder.write_status(path, finished(study, case, status, timeout))
