"""NCCL, its messages by MPI, begun when the stream gets to them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

from .streams import advance_all, stream_of

available = True
NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16, NCCL_SUM = 7, 8, 9, 0
_TYPES = {NCCL_FLOAT32: np.dtype(np.float32), NCCL_FLOAT64: np.dtype(np.float64),
          NCCL_BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
_BYTES = 128
#: Operations of the open group, by stream; None outside of one.
_open: list[tuple[int, Callable[[], Any]]] | None = None
_ids = itertools.count()


class NcclError(RuntimeError):
    pass


def get_version() -> int:
    return 22800


def get_unique_id() -> bytes:
    return f"{MPI.COMM_WORLD.rank} {next(_ids)}".encode().ljust(_BYTES)


def groupStart() -> None:
    global _open
    assert _open is None
    _open = []


def groupEnd() -> None:
    global _open
    assert _open is not None
    together, _open = _open, None

    for stream in {stream for stream, _ in together}:
        stream_of(stream).submit(_Messages([operation for _, operation in together]))


class _Messages:
    """Operations that travel together: begun by a call, False until all have arrived. A graph
    begins them again.
    """

    def __init__(self, operations: list[Callable[[], MPI.Request]]) -> None:
        self._operations = operations
        self._requests: list[MPI.Request] | None = None

    def __call__(self) -> bool:
        if self._requests is None:
            self._requests = [operation() for operation in self._operations]
        arrived = bool(MPI.Request.Testall(self._requests))
        if arrived:
            self._requests = None
        return arrived


def _submit(stream: int, operation: Callable[[], MPI.Request]) -> None:
    if _open is not None:
        _open.append((stream, operation))
    else:
        stream_of(stream).submit(_Messages([operation]))


def _memory(at: int, count: int, kind: int) -> np.ndarray:
    dtype = _TYPES[kind]
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(at)
    return np.frombuffer(raw, np.uint16 if kind == NCCL_BFLOAT16 else dtype, count)


def _add_halves(received: MPI.buffer, total: MPI.buffer, kind: MPI.Datatype) -> None:
    one, other = (np.frombuffer(memory, _TYPES[NCCL_BFLOAT16]) for memory in (received, total))
    np.add(one, other, out=other)


@cache
def _sum(kind: int) -> MPI.Op:
    return MPI.Op.Create(_add_halves, commute=True) if kind == NCCL_BFLOAT16 else MPI.SUM


class NcclCommunicator:
    """Members find each other through the one whose id it is."""

    def __init__(self, ndev: int, commId: bytes, rank: int) -> None:
        assert len(commId) == _BYTES
        first, tag = map(int, commId.split())
        world = MPI.COMM_WORLD
        everyone = None
        if rank == 0:
            found = {0: world.rank}
            for _ in range(ndev - 1):
                member, at = world.recv(tag=20_000 + tag)
                found[member] = at
            everyone = [found[member] for member in range(ndev)]
            for at in everyone[1:]:
                world.send(everyone, at, tag=25_000 + tag)
        else:
            world.send((rank, world.rank), first, tag=20_000 + tag)
            everyone = world.recv(source=first, tag=25_000 + tag)
        self._comm = world.Create_group(world.group.Incl(everyone), tag=tag)

    def check_async_error(self) -> None:
        """No errors; as its host polls, the device goes on."""
        advance_all()

    def send(self, at: int, count: int, kind: int, peer: int, stream: int) -> None:
        _submit(stream, lambda: self._comm.Isend(_memory(at, count, kind), peer))

    def recv(self, at: int, count: int, kind: int, peer: int, stream: int) -> None:
        _submit(stream, lambda: self._comm.Irecv(_memory(at, count, kind), peer))

    def allReduce(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:
        assert source == to and op == NCCL_SUM
        _submit(stream, lambda: self._comm.Iallreduce(
            MPI.IN_PLACE, _memory(to, count, kind), _sum(kind)))

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:
        assert source == to + self._comm.rank * count * _TYPES[kind].itemsize
        _submit(stream, lambda: self._comm.Iallgather(
            MPI.IN_PLACE, _memory(to, count * self._comm.size, kind)))

    def broadcast(self, source: int, to: int, count: int, kind: int, root: int,
                  stream: int) -> None:
        assert source == to
        _submit(stream, lambda: self._comm.Ibcast(_memory(to, count, kind), root))

    def reduceScatter(self, source: int, to: int, count: int, kind: int, op: int,
                      stream: int) -> None:
        assert to == source + self._comm.rank * count * _TYPES[kind].itemsize and op == NCCL_SUM

        whole = _memory(source, count * self._comm.size, kind)
        _submit(stream, lambda: self._comm.Ireduce_scatter_block(
            whole.copy(), _memory(to, count, kind), _sum(kind)))

    def reduce(self, source: int, to: int, count: int, kind: int, op: int, root: int,
               stream: int) -> None:
        assert source == to and op == NCCL_SUM
        data = MPI.IN_PLACE if root == self._comm.rank else _memory(source, count, kind)
        into = _memory(to, count, kind) if root == self._comm.rank else None
        _submit(stream, lambda: self._comm.Ireduce(data, into, _sum(kind), root))
