"""The communicator: layers' data leaves a rank only through it, and only by a schedule's steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcpar.comm import lost
from hpcpar.comm.backoff import YIELDS, YIELDS_SHARED, pause
from hpcpar.comm.buffers import Buffers
from hpcpar.comm.cards import require_own_card
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.lookout import STALL_VARIABLE, stall_s
from hpcpar.comm.message_buffers import place
from hpcpar.comm.mpi_transfer import MpiCollective, MpiTransfer
from hpcpar.comm.nccl_transfer import NcclCollective, NcclTransfer
from hpcpar.comm.schedule_check import agree, require_direct
from hpcpar.comm.trace import Trace
from hpcpar.comm.transfer import Transfer
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World
from hpcpar.kernels.device_group import DeviceGroup
from hpcpar.kernels.interface import Array, Backend
from hpcpar.kernels.streams import Mark
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Schedule


class Communicator:
    """Executes communication steps and traces the messages that it sends.

    All operations are nonblocking. `progress` advances every step in flight; it is called between
    the blocks of long kernels and in every wait, so messages overlap with compute without a helper
    thread.

    Raises
    ------
    InputError
        The same on every rank: NCCL is missing, or ranks share a GPU although NCCL needs one per
        rank.
    """

    def __init__(self, world: World, backend: Backend,
                 transport: Transport = Transport.STAGED) -> None:
        self.world, self.backend, self.transport = world, backend, transport
        self.trace = Trace()
        self._stall_s = stall_s()
        shared = fullest_node(world, backend.name).shared
        self._yields = YIELDS_SHARED if shared else YIELDS
        self._comm: Any = world.comm.Dup()
        self._groups: dict[tuple[int, ...], Any] = {}
        self._active: list[Transfer] = []
        self._device_groups: dict[tuple[int, ...], DeviceGroup] = {}
        if transport is Transport.NCCL:
            world.agree(backend.require_groups)
            require_own_card(world, backend.card)
            self._device_group(tuple(range(world.size)))

    def agree(self, schedule: Schedule) -> None:
        """Check that all ranks have the same schedule, before its first message. Every rank must
        call this.

        Raises
        ------
        RunError
            The same on every rank, naming the ranks that differ and the first different step.
        InputError
            The same on every rank: the schedule uses library collectives that would crash.
        """
        agree(self.world, schedule)
        if self.transport is Transport.DIRECT:
            require_direct(schedule, self.library_collectives)

    @property
    def library_collectives(self) -> bool:
        """False where Open MPI's collectives crash on device memory (issues 9845, 12045)."""
        direct = self.transport is Transport.DIRECT
        return not (direct and self.world.library.startswith("Open MPI"))

    def prepare(self, step: Comm, held: Array, wanted: Array) -> Buffers:
        """Check that arrays fit a step, and compute the memory that its messages need.

        Raises
        ------
        RunError
            An array does not fit the step.
        """
        return Buffers(step, exchange(step, self.world.rank), self.world.rank, held, wanted,
                       self.backend, self.transport is not Transport.STAGED)

    def bind(self, step: Comm, held: Array, wanted: Array) -> Transfer:
        """Bind a single step with its own message memory; see `prepare` and `connect`."""
        buffers = self.prepare(step, held, wanted)
        place(self.backend, [buffers], [1])
        return self.connect(buffers)

    def connect(self, buffers: Buffers, tag_base: int = 0) -> Transfer:
        """Create the requests of a step whose buffers are placed.

        Every rank must connect the steps of a schedule in the same order.
        """
        step, peers = buffers.step, buffers.ex.peers
        by_library = ALGORITHMS[step.algorithm].library and len(peers) > 1
        if self.transport is Transport.NCCL:
            if by_library:
                return NcclCollective(buffers, self._device_group(peers), self.trace)
            everyone = self._device_group(tuple(range(self.world.size)))
            return NcclTransfer(buffers, everyone, self.trace)
        if by_library:
            return MpiCollective(buffers, self.world, self._group(peers), self.trace)
        return MpiTransfer(buffers, self.world, self._comm, tag_base + step.index, self.trace)

    def _group(self, peers: tuple[int, ...]) -> Any:
        if peers not in self._groups:
            self._groups[peers] = self._comm.Create_group(self._comm.Get_group().Incl(list(peers)))
        return self._groups[peers]

    def _device_group(self, peers: tuple[int, ...]) -> DeviceGroup:
        if peers not in self._device_groups:
            group = self._group(peers)
            self._device_groups[peers] = self.backend.group(
                len(peers), peers.index(self.world.rank), lambda mine: group.bcast(mine, root=0))
        return self._device_groups[peers]

    def start(self, transfer: Transfer) -> None:
        """Begin a step."""
        transfer.start()
        self._active.append(transfer)

    def progress(self) -> None:
        """Advance every step in flight."""
        if self._active:
            self._active = [transfer for transfer in self._active if not transfer.progress()]

    def wait(self, transfer: Transfer) -> None:
        """Wait for a step's messages and start to unpack them; other steps advance meanwhile.

        If nothing at all advances for long, a rank is stuck or lost, and this ends the job.
        """
        # a transfer that hides its progress must be polled often
        visible = all(t.shows_progress for t in self._active)
        self._until(lambda: transfer not in self._active, transfer, visible)
        transfer.finish()

    @property
    def host_runs_ahead(self) -> bool:
        """True where the host need not wait for the device within an iteration."""
        alone = self.world.size == 1
        return self.backend.works_later and (alone or self.transport is Transport.NCCL)

    def complete(self, mark: Mark = None) -> None:
        """Wait for the work before a mark; without one, for all work submitted to the device."""
        mark = self.backend.mark() if mark is None else mark
        self._until(lambda: self.backend.reached(mark), None, visible=False)

    def _until(self, done: Callable[[], bool], transfer: Transfer | None, visible: bool) -> None:
        """Poll until `done`, for a transfer or the device; end the job after a long time without
        any progress.

        If progress is `visible` before the end, polls may become rare while there is none.
        """
        polls, seen, since, idle_s = 0, (-1, -1), 0.0, 0.0
        lookout = self.world.lookout
        while True:
            self.progress()
            if done():
                lookout.leave()
                return
            polls += 1
            if not pause(polls, idle_s if visible else 0.0, self._yields):
                continue
            # complete transfers have left `_active`
            now = (len(self._active), sum(t.advanced for t in self._active))
            if now != seen:
                seen, since = now, time.monotonic()
            idle_s = time.monotonic() - since
            for group in self._device_groups.values():
                if fault := group.fault():
                    self.world.abort(f"NCCL reports: {fault}")
            if diverged := lookout.watch(idle_s, lambda: self._details(transfer)):
                self.world.abort(diverged)
            if self._stall_s and idle_s > self._stall_s:
                self._stuck(transfer)

    def _awaited(self, transfer: Transfer | None) -> list[int]:
        """The ranks that a wait is for; none if it is for the device."""
        if transfer is None:
            return []
        return [peer for peer in transfer.awaited() if peer != self.world.rank]

    def _details(self, transfer: Transfer | None) -> str:
        """A wait, after its place in the program."""
        peers = self._awaited(transfer)
        return f"{_step(transfer)}, for {_ranks(peers)}" if peers else ", for the device"

    def _stuck(self, transfer: Transfer | None) -> None:
        peers, stall_s = self._awaited(transfer), f"{self._stall_s:g} s"
        setting = f"({STALL_VARIABLE} sets the seconds, 0 waits forever)"
        if not peers:
            lost.note(f"its device did not answer for {stall_s}")
            self.world.abort(f"the device has not finished its work for {stall_s}: a kernel is "
                             f"stuck, or a message from another rank is missing {setting}")
        lost.note(f"{_ranks(peers)} did not answer for {stall_s}")
        self.world.abort(f"{self.world.lookout.place}{_step(transfer)}: nothing has arrived for "
                         f"{stall_s} from {_ranks(peers)}, which may be stuck, lost or slow "
                         f"{setting}")


def _step(transfer: Transfer | None) -> str:
    if transfer is None:
        return ""
    step = transfer.step
    return f", layer '{step.layer}', step {step.index} ({step.label} of {step.tensor})"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
