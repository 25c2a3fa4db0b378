"""Submits jobs to a batch system and asks for their states."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

from hpcpar.errors import InputError
from hpcpar.sweep.schedulers import Scheduler

#: State of a job that its batch system no longer knows.
GONE = "gone"
#: Seconds that a command may take.
TIMEOUT_S = 60.0


def run(words: list[str], script: str = "/dev/null") -> tuple[int, str, str]:
    """Runs a command of a batch system with a file as stdin: its exit status, stdout and stderr.

    A command that hangs counts as failed.

    Raises
    ------
    InputError
        The command does not exist.
    """
    try:
        with open(script, encoding="utf-8") as stdin:
            done = subprocess.run(words, stdin=stdin, capture_output=True, text=True,
                                  timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as err:
        raise InputError(f"no {words[0]} on this machine; use --launcher local, or go to a node of "
                         "the batch system") from err
    except subprocess.TimeoutExpired:
        return 1, "", f"{words[0]} did not answer within {TIMEOUT_S:.0f} s"
    return done.returncode, done.stdout, done.stderr


def ended(system: Scheduler, state: str) -> bool:
    """Whether a job in this state has ended."""
    return re.fullmatch(f"{GONE}|{system.ended}", state) is not None


def submit(system: Scheduler, script: str) -> str:
    """Submits a batch script; returns the number of its job.

    Raises
    ------
    InputError
        The batch system rejects the script.
    """
    words = [script if word == "{script}" else word for word in system.submit.split()]
    status, out, err = run(words, script)
    number = re.search(system.number, out, re.MULTILINE)
    if status or number is None:
        why = " ".join((err or out).split()).removeprefix(f"{words[0]}: error: ")
        raise InputError(f"{system.title} does not take {script} ({why}); look at account, "
                         "partition, time and nodes")
    return number[1]


def states(system: Scheduler, jobs: Iterable[str]) -> dict[str, str]:
    """The state of each job, in the words of its batch system, or `GONE`; jobs without an answer
    are left out.
    """
    found = {job: _state(system, job) for job in jobs}
    return {job: state for job, state in found.items() if state}


def _state(system: Scheduler, job: str) -> str:
    """The state of a job; empty where a command does not answer: ask again later."""
    for question in system.questions:
        words = [word.replace("{job}", job) for word in question.command.split()]
        try:
            status, out, err = run(words)
        except InputError:
            if question is system.questions[0]:
                raise
            continue  # a site without accounting
        found = re.findall(question.state.replace("{job}", re.escape(job)), out, re.MULTILINE)
        if found:
            return found[-1]
        if status and not re.search(question.unknown, out + err):
            return ""
    return GONE
