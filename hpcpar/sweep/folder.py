"""A case's folder: plan.json, prediction.json, run.h5, log, exit (the launcher's status) and
status.json, each written whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hpcpar.errors import InputError

#: Made, but not started; cannot run at this size; runs as another case; waits or runs in Slurm;
#: runs here; ended well; ended badly.
STATES = PLANNED, SKIPPED, SAME, SUBMITTED, RUNNING, DONE, FAILED = (
    "planned", "skipped", "same", "submitted", "running", "done", "failed"
)

PLAN, PREDICTION, RECORD, LOG, EXIT, STATUS = "plan.json", "prediction.json", "run.h5", "log", "exit", "status.json"


@dataclass(frozen=True)
class Status:
    """Where a case stands.

    Attributes
    ----------
    reason : str
        Why it was skipped or has failed.
    same_as : str
        The case that has the same plan and runs it.
    job : str
        Number of the Slurm job.
    request : dict
        What it was made for (`Study.request`).
    """

    state: str
    reason: str = ""
    same_as: str = ""
    job: str = ""
    request: dict[str, Any] = field(default_factory=dict)


def write_text(path: str, text: str) -> None:
    """Write a file, whole or not at all.

    Raises
    ------
    InputError
        It cannot be written.
    """
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(temporary, path)
    except OSError as err:
        raise InputError(f"cannot write {path}: {err.strerror}; choose a folder with room that you may write, with --out") from err


def make(path: str) -> None:
    """Make a folder.

    Raises
    ------
    InputError
        It cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"cannot make folder {path}: {err.strerror}; choose another place with --out") from err


def read_json(path: str) -> Any:
    """The content of a file of the sweep; None where there is none.

    Raises
    ------
    InputError
        It is damaged.
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
    """Where a case stands; None where it is new.

    Raises
    ------
    InputError
        The file is damaged.
    """
    path = os.path.join(folder, STATUS)
    data = read_json(path)
    if data is None:
        return None
    if not isinstance(data, dict) or data.get("state") not in STATES or not set(data) <= {f.name for f in fields(Status)}:
        raise InputError(
            f"{path} is not the status of a case; delete its folder to run the case again")
    return Status(**data)


def write_status(folder: str, status: Status) -> None:
    """Note where a case stands."""
    write_text(os.path.join(folder, STATUS), json.dumps(asdict(status), indent=1) + "\n")


def remove(folder: str, names: Iterable[str]) -> None:
    """Delete what an earlier attempt left."""
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def exit_status(folder: str) -> int | None:
    """How the case's launcher ended; None where it has not."""
    try:
        with open(os.path.join(folder, EXIT), encoding="utf-8") as f:
            return int(f.read())
    except (FileNotFoundError, ValueError):
        return None


def last_line(log: str) -> str:
    """What a log says last: of hpcpar's own lines, if there are any, as launchers add theirs
    behind; empty where it says nothing.
    """
    try:
        with open(log, encoding="utf-8", errors="replace") as f:
            lines = [line.strip() for line in f if line.strip()]
    except FileNotFoundError:
        return ""
    ours = [line.partition("hpcpar: ")[2] for line in lines if "hpcpar: " in line]
    return (ours or lines or [""])[-1]
