"""One communication step bound to its arrays on a rank, whoever moves its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hpcpar.comm.buffers import Buffers
from hpcpar.comm.trace import Trace
from hpcpar.schedule.algorithms.base import Message


class Transfer(ABC):
    """A step in flight: started once an iteration, and driven by whoever calls `progress`."""

    #: False: `advanced` does not show all of its progress.
    tells = True

    def __init__(self, buffers: Buffers, trace: Trace) -> None:
        self.step, self.ex, self.buffers = buffers.step, buffers.ex, buffers
        self.trace = trace

    @abstractmethod
    def start(self) -> None:
        """Pack, and send what can be sent."""

    @abstractmethod
    def progress(self) -> bool:
        """Advance as far as possible without waiting; True when `finish` may be called."""

    @property
    def advanced(self) -> int:
        """Progress of the step: grows with everything that happens in it."""
        return 0

    def awaited(self) -> tuple[int, ...]:
        """The ranks that may be the ones that are waited for."""
        return self.ex.peers

    def finish(self) -> None:
        """Unpack."""
        self.buffers.unpack()


@dataclass(frozen=True)
class BoundRound:
    """A round of a step on this rank: (array, rank) of every message, and what is added after it:
    (where it landed, where it belongs).
    """

    receives: list[tuple[Any, int]]
    sends: list[tuple[Any, int]]
    sums: list[tuple[Any, Any]]
    sent_bytes: int


def bind_rounds(buffers: Buffers) -> list[BoundRound]:
    """The rounds of a step, with the arrays of their messages."""
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
                place = slots[i % buffers.step.segments][at:at + target.size]
                at += target.size
                sums.append((place, target))
                receives[k] = place, peer
        out.append(BoundRound(receives, sends, sums, sum(array.nbytes for array, _ in sends)))
    return out
