"""Before MPI starts: a process's rank, threads and watcher, and the start of a job."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from hpcpar.comm import lost
from hpcpar.errors import InputError
from hpcpar.process import child, signals
from hpcpar.process.launchers import launcher, whole_number

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: Variables that the user set, before `limit_threads` sets the others.
GIVEN = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
#: Linux's option for the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def limit_threads() -> int:
    """Limits a rank's BLAS threads to its share of the node's cores; returns their number.

    The user's own number stays. It has no effect after NumPy is imported.

    Raises
    ------
    InputError
        The user's setting is not a number.
    """
    by = launcher()
    share = max(1, len(os.sched_getaffinity(0)) // max(1, by.local_ranks if by else 1))
    for name in VARIABLES:
        os.environ.setdefault(name, str(share))
    threads = whole_number(VARIABLES[0])
    if not threads:
        raise InputError(f"{VARIABLES[0]}={os.environ[VARIABLES[0]]:.20}: give a number of "
                         "threads, or unset it")
    return threads


def without(words: list[str], options: dict[str, int]) -> list[str]:
    """A command line without these options; each maps to its number of values."""
    out, skip = [], 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip -= 1
        elif name in options:
            skip = 0 if equals else options[name]
        elif not (word.startswith("-n") and word[2:].isdigit()):
            out.append(word)
    return out


def start(ranks: int, argv: Sequence[str], mpiexec: str) -> NoReturn:
    """Becomes ``mpiexec -n RANKS hpcpar ...``, with `argv` except -n.

    It replaces the process, so signals and the exit status are mpiexec's.

    Raises
    ------
    InputError
        This process is already a rank of a job.
    """
    if launcher():
        raise InputError("-n starts a job, but this process already runs under a launcher; "
                         "drop -n, or drop the launcher")
    program = [mpiexec, "-n", str(ranks), *child.command(), *without(list(argv), {"-n": 1})]
    for number in signals.held():
        print(f"hpcpar: stopped by {signal.Signals(number).name} before the job started",
              file=sys.stderr)
        sys.exit(signals.STATUS)
    sys.stderr.flush()
    os.execve(mpiexec, program, job_environment())


def job_environment() -> dict[str, str]:
    """The environment of a job, without this process's own numbers of threads: the job's ranks
    share the cores.
    """
    return {k: v for k, v in os.environ.items() if k not in VARIABLES or k in GIVEN}


def die_with(parent: int, number: int) -> None:
    """Makes this process, or the program that it becomes, get a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def watch() -> bool:
    """In a job, continues in a child process; this small process stays to report how it died.

    It forwards signals and ends with the child's status. If it is killed, so is the child.

    Returns
    -------
    bool
        True in the child; False outside a job, without a child.
    """
    if not launcher():
        return False
    # both processes note requests before the fork; requests during it wait
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    watcher, rank = os.getpid(), os.fork()
    if rank == 0:
        os.setpgid(0, 0)  # a signal to the group arrives once, from the watcher
        die_with(watcher, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        return True
    passed_on = signals.held().copy()
    signals.held().clear()

    def pass_on(number: int, _: object) -> None:
        passed_on.append(number)
        with suppress(ProcessLookupError):  # it has ended; its status counts
            os.kill(rank, number)

    signals.handle(pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
    status = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    if status < 0 and not passed_on:  # else the whole job ends
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        what = f"rank {started_rank()} on {socket.gethostname()}{lost.KILLED}{name}"
        lost.note(what)
        print(f"hpcpar: {what}{hint}; ending the job", file=sys.stderr, flush=True)
        # the launcher kills the job at once, and drops output that it has not forwarded yet
        time.sleep(0.3)
    if status < 0:
        # after an exit, unlike a signal, the launcher may wait forever for a starting rank
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status)


def started_rank() -> int:
    """This process's rank from its launcher; 0 without one.

    Rank 0 prints the errors that all ranks share.
    """
    by = launcher()
    return by.rank_here if by else 0
