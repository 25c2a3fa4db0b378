"""Requests to stop: the one module that handles signals, from the start of a process.

It imports little, because until `hold` a signal ends the process as Python does.
"""

from __future__ import annotations

import os
import signal
import time

#: `typing` has this name, too, but importing it takes time before signals are handled.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any

#: Signals that end a run cleanly: Slurm sends the first before it kills and the second on a
#: script's request (``--signal``); Ctrl-C sends the third, a terminal that closes the last, unless
#: nohup ignores it.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT,
           *[signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN))
#: Exit status of a run that stopped on request and can be resumed (EX_TEMPFAIL).
STATUS = 75
#: Reserve before a time limit (s), on top of the time for writing the last files.
MARGIN_S = 10.0
#: Interrupts less than this apart (s) count as one.
TWICE_S = 0.5


class _Hold:
    """Notes requests that arrive before anything can act on them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)


def hold() -> None:
    """Notes requests until `handle` or `release` is called.

    They may be blocked until now (``env --block-signal``), so that none is lost before.
    """
    held = _Hold()
    for number in SIGNALS:
        signal.signal(number, held)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def held() -> list[int]:
    """The requests noted so far."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler.numbers if isinstance(handler, _Hold) else []


def handle(action: Callable[[int, FrameType | None], object]) -> dict[signal.Signals, Any]:
    """Lets `action` handle requests; returns the previous handlers.

    `action` is called at once for requests that `hold` noted.
    """
    noted = held()
    before = {number: signal.signal(number, action) for number in SIGNALS}
    while noted:
        action(noted.pop(0), None)
    return before


def release() -> None:
    """Lets requests end this process as they do without `hold`, noted ones included."""
    if not isinstance(signal.getsignal(signal.SIGTERM), _Hold):
        return
    noted = held()
    for number in SIGNALS:
        interrupts = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if interrupts else signal.SIG_DFL)
    for request in noted:
        os.kill(os.getpid(), request)


def ignore() -> None:
    """Ignores requests: this process has done its work, and ends with the status of that work."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Context that notes requests to stop this process.

    Parameters
    ----------
    limit_s : float
        Time limit of the run; 0 for none. The end of a Slurm job counts too.

    Attributes
    ----------
    reason : str
        Why the run stops; empty while nothing asks it to.
    """

    def __init__(self, limit_s: float = 0.0) -> None:
        from hpcpar.process.launchers import whole_number

        now = time.time()
        ends = [now + limit_s] if limit_s else []
        end_of_job = whole_number("SLURM_JOB_END_TIME")
        if end_of_job is not None:
            ends.append(float(end_of_job))
        self._end_s = min(ends, default=None)
        self.reason, self._noted_s = "", 0.0

    def __enter__(self) -> StopRequest:
        self._before = handle(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # a second interrupt stops at once, but a launcher may forward the same one twice
        if self.reason and number == signal.SIGINT and time.time() > self._noted_s + TWICE_S:
            raise KeyboardInterrupt
        self.reason = self.reason or signal.Signals(number).name
        self._noted_s = time.time()

    def due(self, ending_s: float) -> bool:
        """True if the run must stop now, given that its end takes `ending_s`."""
        if self._end_s is not None and time.time() + MARGIN_S + ending_s > self._end_s:
            self.reason = self.reason or "its time limit"
        return bool(self.reason)
