"""Message memory: a view of the tensor where it is contiguous, else a wire buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcpar.errors import RunError
from hpcpar.kernels.interface import Array, Backend, address
from hpcpar.kernels.streams import Mark
from hpcpar.plan.boxes import items, shape
from hpcpar.schedule.exchange import Exchange, Piece
from hpcpar.schedule.steps import Comm, Kind
from hpcpar.schedule.wire import landing_slots, wire


class Buffers:
    """The message buffers of one rank in one step.

    Messages lie in flat arrays. On the CPU, a piece whose box is contiguous in memory is sent from
    and received into the tensor itself. Messages of device tensors are staged through pinned host
    memory, or with `on_device` lie in device memory.

    A GPU packs on the communication stream, after the work that computes the data, and unpacks on
    the compute stream. Compute continues meanwhile, and memory is reused only after its last use.

    Attributes
    ----------
    wire_items, landing_items : int
        Sizes of the wire, and of the landing buffers for messages that are added to it; `place`
        provides both. Steps that never overlap in time may share this memory.

    Raises
    ------
    RunError
        An array's shape or item size differs from the step's.
    """

    def __init__(self, step: Comm, ex: Exchange, rank: int, held: Array, wanted: Array,
                 backend: Backend, on_device: bool) -> None:
        where = f"rank {rank}, step {step.index} ({step.label})"
        for name, array, box in (("held", held, step.source_box(rank)),
                                 ("wanted", wanted, step.destination_box(rank))):
            any_shape = step.kind is Kind.ALLREDUCE and array.size == items(box)
            if tuple(array.shape) != shape(box) and not any_shape:
                raise RunError(f"{where}: the {name} array has shape {array.shape}, but "
                               f"the schedule says {shape(box)}")
            if array.dtype.itemsize != step.item_bytes:
                raise RunError(f"{where}: the {name} array has items of {array.dtype.itemsize} "
                               f"bytes, but the schedule says {step.item_bytes}")
        self.step, self.ex, self.backend = step, ex, backend
        self.held, self.wanted = held, wanted
        self._rank = rank
        self.dtype = held.dtype
        self.on_host = type(held) is np.ndarray
        #: True where messages lie in device memory.
        self.on_device = not self.on_host and on_device
        self.staged = not self.on_host and not on_device
        self._mark: Mark = None
        self._computed: Mark = None
        self._views: list[tuple[int, int, Array]] = []
        self._packs: list[tuple[Array, Piece]] = []
        self._unpacks: list[tuple[Array, Piece | None, Array | None]] = []
        self.wire: Any = None
        self._landing: Any = None
        self._scratch: Array = None
        self.wire_items = self._allreduce() if step.kind is Kind.ALLREDUCE else self._pieces()
        self.landing_items = sum(landing_slots(step, ex).values())

    # -- set-up ------------------------------------------------------------------------------------
    def place(self, flat: Any) -> None:
        """Use this flat array of `wire_items + landing_items` items."""
        wire, self._landing = flat[:self.wire_items], flat[self.wire_items:]
        self.wire = self._flat if self.step.kind is Kind.ALLREDUCE and not self.staged else wire

    def landings(self) -> dict[int, Any]:
        """Landing buffers of messages that are added, by slot; each round in flight has its own."""
        out: dict[int, Any] = {}
        at = 0
        for slot, size in landing_slots(self.step, self.ex).items():
            out[slot], at = self._landing[at:at + size], at + size
        return out

    def _allreduce(self) -> int:
        if not self.held.flags.c_contiguous:
            raise RunError(f"step {self.step.index} ({self.step.label}): "
                           "an allreduce needs a contiguous array")
        self._flat = self.held.reshape(-1)
        return int(self._flat.size) if self.staged else 0

    def _pieces(self) -> int:
        planned = wire(self.step, self.ex, self._rank, self.held, self.wanted, self.on_host)
        self._views, self._packs = planned.views, planned.packs
        self._unpacks = [u for u in planned.unpacks if u[1] or not _same_memory(u[0], u[2])]
        if self.staged:
            largest = max((p.stop - p.start for p in planned.pieces), default=0)
            self._scratch = self.backend.empty((largest,), self.dtype)
        return planned.items

    @property
    def accumulates(self) -> bool:
        """True where `unpack` adds parts to the wanted array.

        `unpack` clears the array first, unless it shares memory with the held array.
        """
        return self.step.reduce and self.step.group is None

    # -- use ---------------------------------------------------------------------------------------
    def span(self, start: int, stop: int) -> Any:
        """The flat array of items `start:stop` of the wire."""
        for a, b, view in self._views:
            if a <= start and stop <= b:
                return view[start - a:stop - a]
        return self.wire[start:stop]

    def pack(self) -> None:
        """Pack outgoing messages, and copy the pieces that stay on this rank.

        A convolution's interior reads those pieces before the halo arrives.
        """
        if self.on_host:
            for view, p in self._packs:
                self.backend.pack(view, self.wire[p.start:p.stop])
        else:
            self._submit_packing()
        if not self.accumulates and not self.step.between:
            self._copy_own()

    def _submit_packing(self) -> None:
        """Pack device arrays on the communication stream, after the work that computes them."""
        self._computed = self.backend.mark(self._computed)
        with self.submitting():
            self.backend.follow(self._computed)
            if self.step.kind is Kind.ALLREDUCE and self.staged:
                self.backend.enqueue_to_host(self._flat, self.wire)
            for view, p in self._packs:
                flat = self.wire[p.start:p.stop]
                if self.staged:
                    scratch = self._scratch[: flat.size]
                    self.backend.pack(view, scratch)
                    self.backend.enqueue_to_host(scratch, flat)
                else:
                    self.backend.pack(view, flat)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Submit this step's work to the communication stream."""
        with self.backend.communication_stream():
            yield
            self._mark = self.backend.mark(self._mark)

    def add(self, sums: Sequence[tuple[Any, Any]]) -> None:
        """Add a round's received messages: (landing buffer, target) of each."""
        if not self.on_device:
            for landing, target in sums:
                target += landing
        elif sums:
            with self.submitting():
                for landing, target in sums:
                    self.backend.accumulate(landing, target)

    def ready(self) -> bool:
        """True once all work submitted to the communication stream is complete."""
        return self.on_host or self.backend.reached(self._mark)

    def _copy_own(self) -> None:
        """Copy the pieces that stay on this rank."""
        for target, piece, source in self._unpacks:
            if piece is None:
                target[...] = source

    def unpack(self) -> None:
        """Copy or add received messages into the wanted array."""
        if not self.on_host:
            self.backend.follow(self._mark)
        if self.step.kind is Kind.ALLREDUCE:
            if self.staged:
                self.backend.enqueue_to_device(self.wire, self._flat)
            if self.wanted.size and not _overlap(self.held, self.wanted):
                self.wanted[...] = self.held
            return
        add = self.accumulates
        if self.step.between and not add:
            self._copy_own()
        if add and not _overlap(self.held, self.wanted):
            self.wanted[...] = 0
        for target, piece, source in self._unpacks:
            if piece is None:
                if add:
                    target += source
                continue
            flat = self.span(piece.start, piece.stop)
            if self.staged:
                self.backend.enqueue_to_device(flat, self._scratch[: flat.size])
                flat = self._scratch[: flat.size]
            if add:
                self.backend.unpack_add(flat, target)
            else:
                self.backend.unpack(flat, target)


def _overlap(a: Array, b: Array) -> bool:
    """True where two arrays may share memory."""
    if isinstance(a, np.ndarray):
        return bool(np.may_share_memory(a, b))
    first, second = _extent(a), _extent(b)
    return first[0] < second[1] and second[0] < first[1]


def _extent(a: Array) -> tuple[int, int]:
    """The address of a device array's first byte, and the address after its last byte."""
    start = address(a)
    if not a.size:
        return start, start
    last = sum((n - 1) * stride for n, stride in zip(a.shape, a.strides, strict=True))
    return start, start + last + a.dtype.itemsize


def _same_memory(a: Array, b: Array) -> bool:
    """True where two views of equal shape are the same items."""
    return a.size == 0 or (address(a) == address(b) and bool(a.strides == b.strides))
