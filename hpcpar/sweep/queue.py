"""Submits jobs to Slurm and queries their states."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

from hpcpar.errors import InputError

#: State of a job that Slurm no longer knows: slurmctld soon forgets finished jobs, and not every
#: site has accounting.
GONE = "gone"
#: Final states of a job.
_ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
          "PREEMPTED", "REVOKED", "TIMEOUT", GONE)
#: Seconds that a Slurm command may take.
TIMEOUT_S = 60.0


def run(command: list[str]) -> tuple[int, str, str]:
    """Runs a Slurm command: its exit status, stdout and stderr; one that hangs counts as failed.

    Raises
    ------
    InputError
        The command does not exist.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False)
    except FileNotFoundError as err:
        raise InputError(f"no {command[0]} on this machine; use --launcher local, or go to a node "
                         "with Slurm") from err
    except subprocess.TimeoutExpired:
        return 1, "", f"{command[0]} did not answer within {TIMEOUT_S:.0f} s"
    return done.returncode, done.stdout, done.stderr


def ended(state: str) -> bool:
    """Whether a job in this state has ended."""
    return state in _ENDED


def submit(script: str) -> str:
    """Submits a batch script; returns the number of its job.

    Raises
    ------
    InputError
        Slurm rejects the script.
    """
    status, out, err = run(["sbatch", "--parsable", script])
    number = out.strip().partition(";")[0]
    if status or not number.isdigit():
        why = " ".join((err or out).split()).removeprefix("sbatch: error: ")
        raise InputError(
            f"Slurm does not take {script} ({why}); look at account, partition, time and nodes")
    return number


def states(ids: Iterable[str]) -> dict[str, str]:
    """The state of each job, in Slurm's words, or `GONE`; jobs without an answer are left out.

    The queue knows waiting and running jobs, the controller those that ended lately, the accounting
    all others.
    """
    status, text, _ = run(["squeue", "--noheader", "--states=all", "--format=%A %T"])
    if status:
        return {}  # the controller is away: ask again later
    listed = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
    out = {}
    for job in ids:
        state = listed.get(job) or _controller(job) or _accounting(job)
        if state is not None:
            out[job] = state
    return out


def _controller(job: str) -> str:
    """The state according to slurmctld; empty where it has forgotten the job."""
    _, text, _ = run(["scontrol", "show", "job", job, "--oneliner"])
    found = re.search(r"\bJobState=(\w+)", text)
    return found[1] if found else ""


def _accounting(job: str) -> str | None:
    """The state according to the accounting.

    `GONE` where there is no accounting or no entry, None where the accounting does not answer.
    """
    try:
        status, text, err = run(["sacct", "--noheader", "--parsable2", "--allocations",
                                 f"--jobs={job}", "--format=State"])
    except InputError:  # no such command
        return GONE
    if status:
        return GONE if "disabled" in err else None
    words = text.split()
    return words[0] if words else GONE
