"""Ranks that wait long: a sign on stderr, and an end where ranks wait at different places.

A rank that has waited long tells the others where it waits, and tells them again when it goes on.
All waiting ranks therefore know each other's places, and a short wait costs no message.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcpar.comm.backoff import pause
from hpcpar.errors import InputError

#: The environment variable that says after how many seconds a wait without any progress ends the
#: job (0: never), and its default.
STALL_VARIABLE, STALL_S = "HPCPAR_STALL_S", 300.0
#: A rank that has waited for this fraction of the time says on stderr where it waits.
SIGN_FRACTION = 1 / 10

#: Where a rank waits: a part of the program, and details.
Place = tuple[str, str]


def stall_s() -> float:
    """Seconds without progress after which the job ends; 0 for never.

    Raises
    ------
    InputError
        The environment variable is not a number of seconds.
    """
    text = os.environ.get(STALL_VARIABLE, "")
    try:
        seconds = float(text) if text else STALL_S
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InputError(f"{STALL_VARIABLE}={text} is not a time: give a number of seconds, or 0 "
                         "to wait forever")
    return seconds


class Lookout:
    """Knows where this rank is, and where other ranks are that have waited long.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : mpi4py.MPI.Comm
        All ranks; the lookout uses a copy.

    Attributes
    ----------
    place : str
        The part of the program that runs: "the forward pass of iteration 3". Ranks that all wait,
        but not at the same place, have diverged.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm.Dup()
        self.place = "the start"
        self._others: dict[int, Place] = {}
        self._own: Place | None = None
        self._signed = False
        self._sent: list[Any] = []

    def watch(self, idle_s: float, details: Callable[[], str]) -> str | None:
        """Look around during a wait; return an error if the ranks have diverged.

        Parameters
        ----------
        idle_s : float
            Time without any progress.
        details : callable
            Describes the wait: ", step 5 (sum of 'fc1'), for rank 1".
        """
        sign_s = SIGN_FRACTION * (stall_s() or STALL_S)
        if idle_s < sign_s / 2:
            self.leave()
            return None
        if self._own is None:
            self._own = self.place, details()
            self._tell(self._own)
        self._hear()
        rank, size = self._comm.rank, self._comm.size
        if idle_s < sign_s or any(other < rank for other in self._others):
            return None  # the lowest rank that waits speaks for all
        waiting = {**self._others, rank: self._own}
        if len(waiting) == size and len({place for place, _ in waiting.values()}) > 1:
            return ("all ranks wait for each other, but not at the same place of the program: "
                    f"{summary(waiting)}; make the same calls on every rank")
        if not self._signed:
            busy = [other for other in range(size) if other not in waiting]
            rest = f"; {ranks_text(busy)} busy, or outside hpcpar" if busy else ""
            print(f"hpcpar: no progress for {idle_s:.3g} s: {summary(waiting)}{rest}",
                  file=sys.stderr, flush=True)
            self._signed = True
        return None

    def leave(self) -> None:
        """The wait has ended, or made progress."""
        if self._own is not None:
            self._tell(None)
            self._own, self._signed = None, False

    def rest(self, request: Any, details: str, limited: bool) -> str | None:
        """Wait for a request of all ranks; return an error if they diverge or, if `limited`, take
        too long.
        """
        since, polls = time.monotonic(), 0
        while not request.Test():
            polls, idle_s = polls + 1, time.monotonic() - since
            if not pause(polls, idle_s):
                continue
            fault = self.watch(idle_s, lambda: details)
            limit_s = stall_s() if limited else 0.0
            if fault is None and limit_s and idle_s > limit_s:
                fault = (f"{self.place}{details}: some ranks have not come here for {limit_s:g} s "
                         f"({STALL_VARIABLE} sets the seconds, 0 waits forever)")
            if fault is not None:
                return fault
        self.leave()
        return None

    def _tell(self, own: Place | None) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent += [self._comm.isend(own, rank) for rank in range(self._comm.size)
                       if rank != self._comm.rank]

    def _hear(self) -> None:
        status = self._mpi.Status()
        while self._comm.Iprobe(status=status):
            other = status.Get_source()
            place: Place | None = self._comm.recv(source=other)
            self._others.pop(other, None)
            if place is not None:
                self._others[other] = place


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in a sentence: "rank 3 is", or "ranks 0-2, 5 are"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text} is" if text.isdigit() else f"ranks {text} are"


def summary(places: Mapping[int, Place]) -> str:
    """The ranks at each place, with the details of the lowest of them."""
    at: dict[str, list[int]] = {}
    for rank, (place, _) in sorted(places.items()):
        at.setdefault(place, []).append(rank)
    return "; ".join(f"{ranks_text(ranks)} at {place}{places[ranks[0]][1]}"
                     for place, ranks in at.items())
