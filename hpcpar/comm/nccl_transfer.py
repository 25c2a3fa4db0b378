"""Communication steps by NCCL, from GPU to GPU.

A step starts by submitting all of its rounds to the communication stream; the host does not wait
for them. All ranks submit a schedule's steps in the same order, so one stream per rank cannot
deadlock.
"""

from __future__ import annotations

from hpcpar.comm.buffers import Buffers
from hpcpar.comm.trace import Trace
from hpcpar.comm.transfer import Transfer, bind_rounds
from hpcpar.kernels.device_group import DeviceGroup
from hpcpar.schedule.exchange import Piece
from hpcpar.schedule.steps import Kind


class NcclTransfer(Transfer):
    """The rounds of a step, each one NCCL group of sends and receives; `ranks` are all ranks."""

    def __init__(self, buffers: Buffers, ranks: DeviceGroup, trace: Trace) -> None:
        super().__init__(buffers, trace)
        self._ranks = ranks
        self._rounds = bind_rounds(buffers)

    def start(self) -> None:
        self.buffers.pack()
        self.trace.add(self.step.index, 0, 0)
        for r in self._rounds:
            with self.buffers.submitting():
                self._ranks.exchange(r.sends, r.receives)
            self.buffers.add(r.sums)
            self.trace.add(self.step.index, len(r.sends), r.sent_bytes)

    def progress(self) -> bool:
        return True


class NcclCollective(Transfer):
    """An in-place collective of NCCL (``--collectives mpi``) among `members`, in group order."""

    def __init__(self, buffers: Buffers, members: DeviceGroup, trace: Trace) -> None:
        super().__init__(buffers, trace)
        self._members = members
        gathered = self.ex.unpack if self.step.kind is Kind.ALLGATHER else ()
        spans = [(p.start, p.stop) for p in (*self.ex.pack, *gathered) if isinstance(p, Piece)]
        #: The members' blocks, in group order.
        self._blocks = [buffers.span(start, stop) for start, stop in sorted(spans)]

    def start(self) -> None:
        self.buffers.pack()
        with self.buffers.submitting():
            if self.step.kind is Kind.ALLREDUCE:
                sent_bytes = self.buffers.wire.nbytes
                self._members.allreduce(self.buffers.wire)
            elif self.step.kind is Kind.ALLGATHER:
                sent_bytes = self._blocks[self._members.rank].nbytes
                self._members.allgather(self._blocks)
            else:
                sent_bytes = self.buffers.wire.nbytes
                self._members.reduce_scatter(self._blocks)
        self.trace.add(self.step.index, 1, sent_bytes)

    def progress(self) -> bool:
        return True
