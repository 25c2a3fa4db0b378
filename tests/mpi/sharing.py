"""Ranks that outnumber the cores: whoever waits sleeps, and leaves its core to those that work."""

from __future__ import annotations

import pickle
import time
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpcpar.comm.world import World

T = TypeVar("T")
#: Seconds between two looks at a pending message.
NAP_S = 1e-4


def rest(request: Any) -> None:
    """Wait for a request."""
    while not request.Test():
        time.sleep(NAP_S)


class Patient(MPI.Intracomm):
    """A communicator, and all its copies, whose collectives wait asleep: a library's own keep their
    cores busy until all have come.
    """

    def Barrier(self) -> None:
        rest(self.Ibarrier())

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        rest(self.Iallreduce(sendbuf, recvbuf, op))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        rest(self.Ialltoall(sendbuf, recvbuf))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        rest(self.Igather(sendbuf, recvbuf, root))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        rest(self.Ibcast(buf, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        own, sizes = np.frombuffer(pickle.dumps(sendobj), np.uint8), np.empty(self.size, np.int64)
        rest(self.Iallgather(np.array([own.size]), sizes))
        found = np.empty(int(sizes.sum()), np.uint8)
        rest(self.Iallgatherv(own, (found, sizes)))
        return [pickle.loads(part) for part in np.split(found, np.cumsum(sizes)[:-1])]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        found = self.allgather(sendobj)
        return found if self.rank == root else None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        data = np.frombuffer(pickle.dumps(obj) if self.rank == root else b"", np.uint8)
        size = np.array([data.size])
        self.Bcast(size, root)
        if self.rank == root:
            self.Bcast(data, root)
            return obj
        data = np.empty(int(size[0]), np.uint8)
        self.Bcast(data, root)
        return pickle.loads(data)


def allgather(world: World, value: T) -> list[T]:
    """Every rank's value."""
    return list(world.comm.allgather(value))


def bcast(world: World, value: T) -> T:
    """Rank 0's value."""
    return world.bcast(value)
