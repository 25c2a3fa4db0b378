"""A communication step bound to its arrays on a rank, for any transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hpcpar.comm.buffers import Buffers
from hpcpar.comm.trace import Trace
from hpcpar.schedule.algorithms.base import Message


class Transfer(ABC):
    """A bound step: each iteration starts it once, and calls of `progress` advance it."""

    #: False where `advanced` does not count all progress.
    shows_progress = True

    def __init__(self, buffers: Buffers, trace: Trace) -> None:
        self.step, self.ex, self.buffers = buffers.step, buffers.ex, buffers
        self.trace = trace

    @abstractmethod
    def start(self) -> None:
        """Pack, and start the messages that can start."""

    @abstractmethod
    def progress(self) -> bool:
        """Advance as far as possible without waiting; return True once `finish` may be called."""

    @property
    def advanced(self) -> int:
        """A progress counter that grows with every event of the step."""
        return 0

    def awaited(self) -> tuple[int, ...]:
        """The ranks that this step may be waiting for."""
        return self.ex.peers

    def finish(self) -> None:
        """Unpack the received messages."""
        self.buffers.unpack()


@dataclass(frozen=True)
class BoundRound:
    """A round of a step on this rank: (array, rank) of every message, and (landing buffer, target)
    of every message that is added.
    """

    receives: list[tuple[Any, int]]
    sends: list[tuple[Any, int]]
    sums: list[tuple[Any, Any]]
    sent_bytes: int


def bind_rounds(buffers: Buffers) -> list[BoundRound]:
    """Bind the rounds of a step to the arrays of their messages."""
    ex, slots = buffers.ex, buffers.landings()

    def message(m: Message) -> tuple[Any, int]:
        return buffers.span(m.start, m.stop), ex.peers[m.peer]

    out = []
    for i, r in enumerate(ex.rounds):
        receives, sends = [message(m) for m in r.recvs], [message(m) for m in r.sends]
        sums = []
        if r.reduce:
            at = 0
            for k, (target, peer) in enumerate(receives):
                landing = slots[i % buffers.step.segments][at:at + target.size]
                at += target.size
                sums.append((landing, target))
                receives[k] = landing, peer
        out.append(BoundRound(receives, sends, sums, sum(array.nbytes for array, _ in sends)))
    return out
