"""The folder of a case: plan.json, prediction.json, run.h5, log, exit (the launcher's exit status)
and status.json, written atomically; and the lock that lets one sweep at a time work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from hpcpar.errors import InputError
from hpcpar.io.files import lock, reason, require_no_links, require_regular, write_text
from hpcpar.io.schema import Line, one_of, plain, read_bytes, read_json

if TYPE_CHECKING:
    from hpcpar.prediction.prediction import PredictionFile

#: ``planned``: not started. ``skipped``: cannot run at this size. ``same``: another case has the
#: same plan and runs it. ``submitted``: waits or runs in a batch system. ``running``: runs here.
STATES = PLANNED, SKIPPED, SAME, SUBMITTED, RUNNING, DONE, FAILED = (
    "planned", "skipped", "same", "submitted", "running", "done", "failed"
)
State = Annotated[str, one_of(*STATES)]
JobNumber = Annotated[str, Meta(pattern=r"^[\w.\[\]-]*$(?!\n)", description="the number of a job")]
AGAIN = "delete its folder to run the case again"

PLAN, PREDICTION, RECORD, LOG, EXIT, STATUS = ("plan.json", "prediction.json", "run.h5", "log",
                                               "exit", "status.json")
#: The machine of a sweep, in the sweep's own folder.
MACHINE = "machine.toml"
#: The folders of cases and of batch scripts in a sweep's folder.
CASES, JOBS = "cases", "jobs"
#: Output of a sweep's calibration, in the sweep's own folder.
CALIBRATION_LOG = "calibration.log"
#: Files in a sweep's folder: the study, and its report.
STUDY, PAGE, DATA = "study.json", "report.html", "report.json"
#: The end of a log in which its last line is looked for.
_LOG_END_BYTES = 1 << 20


@dataclass(frozen=True)
class Status:
    """The state of a case."""

    state: State
    #: Why the case was skipped or failed.
    reason: str = ""
    #: The case with the same plan that runs it.
    same_as: str = ""
    #: Batch system, number of the job, and the file for what it says itself.
    launcher: Line = ""
    job: JobNumber = ""
    log: Line = ""
    #: `Study.request` at the time of planning.
    request: dict[str, Any] = field(default_factory=dict)


@contextmanager
def alone(out: str) -> Iterator[None]:
    """Holds the lock of a sweep's folder, in which all names are the sweep's own.

    Raises
    ------
    InputError
        Another sweep holds the lock, something in the folder is a symbolic link, or the folder
        has files with a sweep's names that are not a sweep's.
    """
    require_no_links(out)
    if not os.path.exists(os.path.join(out, STUDY)):
        # they draw with NumPy, which a job loads once its threads are limited
        from hpcpar.report.pictures.sweep_plots import PICTURES, SUFFIXES

        pictures = [name + suffix for name in PICTURES for suffix in SUFFIXES]
        names = (PAGE, DATA, CALIBRATION_LOG, CASES, JOBS, *pictures)
        for path in (os.path.join(out, name) for name in names):
            if os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path)):
                raise InputError(f"{path} exists, but {out} is not the folder of a sweep: it is "
                                 "not replaced; choose another folder")
    with lock(os.path.join(out, STUDY), "study"):
        yield


def read_status(folder: str) -> Status | None:
    """The status of a case; None for a new case.

    Raises
    ------
    InputError
        The file is damaged.
    """
    return read_json(os.path.join(folder, STATUS), Status, AGAIN)


def read_prediction(folder: str) -> PredictionFile | None:
    """The prediction of a case; None where it was skipped.

    Raises
    ------
    InputError
        The file is damaged.
    """
    from hpcpar.prediction.prediction import PredictionFile  # it loads NumPy

    return read_json(os.path.join(folder, PREDICTION), PredictionFile, AGAIN)


def write_status(folder: str, status: Status) -> Status:
    """Writes the status of a case, and returns it."""
    write_text(os.path.join(folder, STATUS), json.dumps(plain(status), indent=1) + "\n", "status")
    return status


def clear(folder: str) -> None:
    """Deletes what an earlier attempt to run the case has left."""
    for name in (EXIT, RECORD, LOG):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def exit_status(folder: str) -> int | None:
    """The exit status of the case's launcher; None while it runs."""
    path = os.path.join(folder, EXIT)
    try:
        return int(read_bytes(path, "file", AGAIN)) if os.path.exists(path) else None
    except ValueError:
        return None


def last_line(log: str) -> str:
    """The last line of a log; empty where there is none.

    hpcpar's own lines win, because launchers add theirs at the end.
    """
    try:
        require_regular(log)
        with open(log, "rb") as f:
            f.seek(max(0, os.path.getsize(log) - _LOG_END_BYTES))
            lines = [line.strip() for line in f.read().decode(errors="replace").splitlines()
                     if line.strip()]
    except FileNotFoundError:
        return ""
    except OSError as err:
        raise InputError(f"cannot read log {log}: {reason(err)}; {AGAIN}") from err
    ours = [line.partition("hpcpar: ")[2] for line in lines if "hpcpar: " in line]
    return (ours or lines or [""])[-1]
