"""Communication steps by MPI."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.comm.buffers import Buffers
from hpcpar.comm.trace import Trace
from hpcpar.comm.transfer import Transfer, bind_rounds
from hpcpar.comm.world import World
from hpcpar.kernels.bfloat16 import is_half
from hpcpar.schedule.exchange import Piece
from hpcpar.schedule.steps import Kind


class MpiTransfer(Transfer):
    """The rounds of a step, each a list of persistent MPI requests.

    Requests are created once, and every iteration starts them again. Rounds are posted in order,
    each once the round that it depends on is complete, so several segments of a ring are in flight
    at once.
    """

    def __init__(self, buffers: Buffers, world: World, comm: Any, tag: int, trace: Trace) -> None:
        super().__init__(buffers, trace)
        self._mpi = world.mpi
        self.shows_progress = buffers.on_host  # a device's stream hides it
        self._rounds = bind_rounds(buffers)
        self._requests = [
            [*(comm.Recv_init(_message(array), source=rank, tag=tag) for array, rank in r.receives),
             *(comm.Send_init(_message(array), dest=rank, tag=tag) for array, rank in r.sends)]
            for r in self._rounds
        ]
        self._posted = self._done = 0

    def start(self) -> None:
        self.buffers.pack()
        self._posted = self._done = 0
        self.trace.add(self.step.index, 0, 0)
        if self.buffers.ready():
            self._post()

    def _post(self) -> None:
        while (self._posted < len(self._rounds)
               and self._posted - self.ex.in_flight < self._done):
            # one by one, because messages to the same rank match in the order in which they start
            for request in self._requests[self._posted]:
                request.Start()
            r = self._rounds[self._posted]
            self.trace.add(self.step.index, len(r.sends), r.sent_bytes)
            self._posted += 1

    def progress(self) -> bool:
        while self.buffers.ready():
            self._post()
            if self._done == self._posted:
                return True
            requests = self._requests[self._done]
            if requests and not self._mpi.Request.Testall(requests):
                return False
            self.buffers.add(self._rounds[self._done].sums)
            self._done += 1
        return False

    @property
    def advanced(self) -> int:
        return self._posted + self._done

    def awaited(self) -> tuple[int, ...]:
        """The ranks with an incomplete message in the current round."""
        if self._done == self._posted:
            return ()
        r = self._rounds[self._done]
        peers = [rank for _, rank in (*r.receives, *r.sends)]
        return tuple(sorted({p for p, q in zip(peers, self._requests[self._done], strict=True)
                             if not q.Get_status()}))


class MpiCollective(Transfer):
    """A nonblocking collective of the MPI library (``--collectives mpi``)."""

    shows_progress = False

    def __init__(self, buffers: Buffers, world: World, group: Any, trace: Trace) -> None:
        super().__init__(buffers, trace)
        step, ex = self.step, self.ex
        self._mpi, self._group = world.mpi, group
        self._request: Any = None
        self._own: Piece | None = None
        self._result: Any = None
        self._counts: list[int] = []
        self._sum = world.mpi.SUM
        if is_half(buffers) and step.reduce:
            self._sum = _sum_of_halves(world.mpi, buffers.dtype)
        if step.kind is not Kind.ALLREDUCE:
            parts = step.destination if step.kind is Kind.REDUCE_SCATTER else step.source
            self._counts = [parts.items(peer) for peer in ex.peers]
            # the rank's own piece: an allgather packs only this, and a reduce-scatter unpacks it
            own = ex.unpack[0] if step.kind is Kind.REDUCE_SCATTER else ex.pack[0]
            assert isinstance(own, Piece)
            self._own = own
            if step.kind is Kind.REDUCE_SCATTER:
                # MPI refuses equal send and receive addresses, even for empty messages
                self._result = np.empty(0, buffers.dtype)
                if own.stop > own.start:
                    self._result = buffers.landings()[0]

    def start(self) -> None:
        self.buffers.pack()
        self._request = None
        if self.buffers.ready():
            self._post()

    def _post(self) -> None:
        wire, own = _message(self.buffers.wire), self._own
        if self.step.kind is Kind.ALLREDUCE:
            sent = wire.nbytes
            self._request = self._group.Iallreduce(self._mpi.IN_PLACE, wire, self._sum)
        elif self.step.kind is Kind.ALLGATHER:
            assert own is not None
            sent = (own.stop - own.start) * self.step.item_bytes
            self._request = self._group.Iallgatherv(self._mpi.IN_PLACE, [wire, self._counts])
        else:
            sent = wire.nbytes
            self._request = self._group.Ireduce_scatter(
                wire, _message(self._result), self._counts, self._sum)
        self.trace.add(self.step.index, 1, sent)

    def progress(self) -> bool:
        if self._request is None and self.buffers.ready():
            self._post()
        return self._request is not None and bool(self._request.Test())

    def finish(self) -> None:
        if self._result is not None and self._result.size and self._own is not None:
            self.buffers.wire[self._own.start:self._own.stop] = self._result
        self.buffers.unpack()


def _message(array: Any) -> Any:
    """An array of a type that MPI has."""
    return array.view(np.uint16) if is_half(array) else array


@lru_cache(maxsize=2)
def _sum_of_halves(mpi: Any, dtype: Any) -> Any:
    """MPI's operation that adds bfloat16 or float16 numbers, which travel as 16-bit integers."""

    def add(received: Any, total: Any, kind: Any) -> None:
        one, other = (np.frombuffer(memory, dtype) for memory in (received, total))
        np.add(one, other, out=other)

    return mpi.Op.Create(add, commute=True)
