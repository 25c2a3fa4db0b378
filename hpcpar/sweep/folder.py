"""The folder of a case: plan.json, prediction.json, run.h5, log, exit (the launcher's exit status)
and status.json, written atomically; and the lock that lets one sweep at a time work.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcpar.errors import InputError
from hpcpar.files import write_text

#: ``planned``: not started. ``skipped``: cannot run at this size. ``same``: another case has the
#: same plan and runs it. ``submitted``: waits or runs in Slurm. ``running``: runs here.
STATES = PLANNED, SKIPPED, SAME, SUBMITTED, RUNNING, DONE, FAILED = (
    "planned", "skipped", "same", "submitted", "running", "done", "failed"
)

PLAN, PREDICTION, RECORD, LOG, EXIT, STATUS = ("plan.json", "prediction.json", "run.h5", "log",
                                               "exit", "status.json")


@dataclass(frozen=True)
class Status:
    """The state of a case."""

    state: str
    #: Why the case was skipped or failed.
    reason: str = ""
    #: The case with the same plan that runs it.
    same_as: str = ""
    #: Number of the Slurm job.
    job: str = ""
    #: `Study.request` at the time of planning.
    request: dict[str, Any] = field(default_factory=dict)


@contextmanager
def alone(out: str) -> Iterator[None]:
    """Holds the lock of a sweep's folder. On file systems without locks this does nothing.

    Raises
    ------
    InputError
        Another sweep holds the lock.
    """
    with open(os.path.join(out, ".lock"), "w", encoding="ascii") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise InputError(
                f"another sweep is at work in {out}; wait for it, or give another --out") from err
        except OSError:
            pass
        yield


def make(path: str) -> None:
    """Makes a folder.

    Raises
    ------
    InputError
        The folder cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"cannot make folder {path}: {err.strerror}; choose another place with --out") from err


def read_json(path: str) -> Any:
    """The content of a JSON file; None where the file does not exist.

    Raises
    ------
    InputError
        The file is damaged.
    """
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise InputError(
            f"{path} cannot be read ({err}); delete its folder to run the case again") from err


def read_status(folder: str) -> Status | None:
    """The status of a case; None for a new case.

    Raises
    ------
    InputError
        The file is damaged.
    """
    path = os.path.join(folder, STATUS)
    data = read_json(path)
    if data is None:
        return None
    try:
        status = Status(**data)
        if status.state in STATES:
            return status
    except TypeError:
        pass
    raise InputError(f"{path} is not the status of a case; delete its folder to run the case again")


def write_status(folder: str, status: Status) -> Status:
    """Writes the status of a case, and returns it."""
    write_text(os.path.join(folder, STATUS), json.dumps(asdict(status), indent=1) + "\n", "status")
    return status


def clear(folder: str) -> None:
    """Deletes what an earlier attempt to run the case has left."""
    for name in (EXIT, RECORD, LOG):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def exit_status(folder: str) -> int | None:
    """The exit status of the case's launcher; None while it runs."""
    try:
        with open(os.path.join(folder, EXIT), encoding="utf-8") as f:
            return int(f.read())
    except (FileNotFoundError, ValueError):
        return None


def last_line(log: str) -> str:
    """The last line of a log; empty where there is none.

    hpcpar's own lines win, because launchers add theirs at the end.
    """
    try:
        with open(log, encoding="utf-8", errors="replace") as f:
            lines = [line.strip() for line in f if line.strip()]
    except FileNotFoundError:
        return ""
    ours = [line.partition("hpcpar: ")[2] for line in lines if "hpcpar: " in line]
    return (ours or lines or [""])[-1]
