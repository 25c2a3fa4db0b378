"""NCCL: messages between the GPUs of a group of ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.errors import InputError
from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.device_group import DeviceGroup
from hpcpar.kernels.interface import Array, address

#: One algorithm for all sizes, so that all runs add in the same order.
_ALGORITHM = ("NCCL_ALGO", "Ring")


def library() -> Any:
    """CuPy's NCCL module.

    Raises
    ------
    InputError
        NCCL is missing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    if not nccl.available:
        raise InputError("--transport nccl needs NCCL; install it with: pip install 'hpcpar[gpu]', "
                         "or use --transport staged")
    return nccl


def nccl_version() -> str:
    """Version of NCCL; empty if NCCL is missing."""
    try:
        return str(library().get_version())
    except InputError:
        return ""


class NcclGroup(DeviceGroup):
    """An NCCL communicator; see `Backend.group`."""

    def __init__(self, size: int, rank: int, share: Callable[[bytes], bytes]) -> None:
        self.size, self.rank = size, rank
        self._nccl = library()
        os.environ.setdefault(*_ALGORITHM)
        self._types = {
            np.dtype(np.float32): self._nccl.NCCL_FLOAT32,
            np.dtype(np.float64): self._nccl.NCCL_FLOAT64,
            BFLOAT16: self._nccl.NCCL_BFLOAT16,
        }
        group_id = share(self._nccl.get_unique_id() if rank == 0 else b"")
        self._comm = self._nccl.NcclCommunicator(size, group_id, rank)

    @contextmanager
    def _grouped(self) -> Iterator[None]:
        """A context whose operations NCCL launches as one."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def _message(self, array: Array) -> tuple[int, int, int]:
        """Address, number of items and NCCL type of a message."""
        return address(array), array.size, self._types[array.dtype]

    def exchange(self, sends: Sequence[tuple[Array, int]],
                 receives: Sequence[tuple[Array, int]]) -> None:
        stream = cp.cuda.get_current_stream().ptr
        with self._grouped():
            for array, member in receives:
                self._comm.recv(*self._message(array), member, stream)
            for array, member in sends:
                self._comm.send(*self._message(array), member, stream)

    def allreduce(self, array: Array) -> None:
        if array.size:
            at, items, kind = self._message(array)
            self._comm.allReduce(at, at, items, kind, self._nccl.NCCL_SUM,
                                 cp.cuda.get_current_stream().ptr)

    def allgather(self, blocks: Sequence[Array]) -> None:
        stream, own = cp.cuda.get_current_stream().ptr, blocks[self.rank]
        if len({block.size for block in blocks}) == 1:
            if own.size:
                self._comm.allGather(address(own), address(blocks[0]), own.size,
                                     self._types[own.dtype], stream)
            return
        with self._grouped():
            for member, block in enumerate(blocks):
                if block.size:
                    at, items, kind = self._message(block)
                    self._comm.broadcast(at, at, items, kind, member, stream)

    def reduce_scatter(self, blocks: Sequence[Array]) -> None:
        stream, own = cp.cuda.get_current_stream().ptr, blocks[self.rank]
        if len({block.size for block in blocks}) == 1:
            if own.size:
                self._comm.reduceScatter(address(blocks[0]), address(own), own.size,
                                         self._types[own.dtype], self._nccl.NCCL_SUM, stream)
            return
        with self._grouped():
            for member, block in enumerate(blocks):
                if block.size:
                    at, items, kind = self._message(block)
                    self._comm.reduce(at, at, items, kind, self._nccl.NCCL_SUM, member, stream)

    def fault(self) -> str:
        try:
            self._comm.check_async_error()
        except self._nccl.NcclError as err:
            return str(err)
        return ""
