"""The MPI world: the only place that imports mpi4py."""

from __future__ import annotations

import atexit
import copy
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from hpcpar.comm import lost
from hpcpar.comm.lookout import Lookout, ranks_text
from hpcpar.errors import InputError, RunError, on_all_ranks, one_line, visible
from hpcpar.process.launchers import launcher, pmi_of
from hpcpar.process.signals import release

T = TypeVar("T")

#: Seconds that a rank waits before it ends the job after losing contact with another rank, so that
#: the lost rank's watcher (`hpcpar.cli.launch.watch`) can report first.
LOST_S = 1.0
#: Bytes of the message in which ranks share small values.
_SHARED_BYTES = 512


class World:
    """All ranks of the job.

    Raises
    ------
    InputError
        MPI is not installed.
    """

    def __init__(self) -> None:
        try:
            import mpi4py
            from mpi4py import MPI
        except (ImportError, RuntimeError) as err:
            raise InputError(f"no usable MPI ({str(err).splitlines()[0]}); install it with: pip "
                             "install 'hpcpar[mpi]'") from err
        release()  # now no rank waits for this one in MPI's initialization
        self.mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        #: Rank within this node.
        self.local_rank: int = node.Get_rank()
        node.Free()
        self.lookout = Lookout(MPI, self.comm)
        self.version: str = mpi4py.__version__
        self.library: str = " ".join(MPI.Get_library_version().split("\n")[0].strip("\0 ").split())

    def alone(self) -> World:
        """A separate world with this rank only."""
        out = copy.copy(self)
        out.comm, out.rank, out.size = self.mpi.COMM_SELF, 0, 1
        out.lookout = Lookout(self.mpi, out.comm)
        return out

    @property
    def hostname(self) -> str:
        return socket.gethostname()

    @property
    def boot_id(self) -> str:
        """Identifies the machine: containers on it have different host names but the same id."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        except OSError:
            return self.hostname

    def barrier(self) -> None:
        self.comm.Barrier()

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, for small values: an iteration's arrays travel by steps."""
        return self.comm.gather(value, root=0)

    def bcast(self, value: T) -> T:
        return self.comm.bcast(value, root=0)

    def gather_array(self, array: np.ndarray) -> np.ndarray | None:
        """The ranks' equal-shaped arrays, stacked on rank 0."""
        array = np.asarray(array, order="C")
        out = np.empty((self.size, *array.shape), array.dtype) if self.rank == 0 else None
        self.comm.Gather(array, out, root=0)
        return out

    def min(self, value: float) -> float:
        """The minimum over all ranks."""
        return self.comm.allreduce(value, op=self.mpi.MIN)

    def max(self, value: float) -> float:
        """The maximum over all ranks."""
        return self.comm.allreduce(value, op=self.mpi.MAX)

    def sum_of_each(self, values: np.ndarray) -> np.ndarray:
        """Each entry's sum over all ranks."""
        out = np.empty_like(values)
        self.comm.Allreduce(np.ascontiguousarray(values), out)
        return out

    def max_of_each(self, values: np.ndarray) -> np.ndarray:
        """Each entry's maximum over all ranks (NaN cannot be compared)."""
        out = np.empty_like(values)
        self.comm.Allreduce(np.ascontiguousarray(values), out, op=self.mpi.MAX)
        return out

    def bcast_array(self, array: np.ndarray | None, shape: tuple[int, ...],
                    dtype: Any) -> np.ndarray:
        """Rank 0's array on every rank."""
        out = np.empty(shape, dtype) if array is None else np.ascontiguousarray(array)
        self.comm.Bcast(out, root=0)
        return out

    def share(self, call: str, value: T, comm: Any = None, in_loop: bool = True) -> dict[int, T]:
        """The value of each rank, or rank of `comm`; they make the same call together.

        One collective carries small values; a second one follows if any value is large.

        Parameters
        ----------
        call : str
            Names the call.
        in_loop : bool
            All ranks must be at the same place (`Lookout.place`), and a wait that is too long ends
            the job.

        Raises
        ------
        RunError
            Ranks make different calls, or are at different places; on every rank.
        """
        comm = self.comm if comm is None else comm
        key, at = (self.lookout.place if in_loop else ""), f"{self.lookout.place}, {call}"
        own = np.frombuffer(pickle.dumps((self.rank, f"{key}, {call}", at, value)), np.uint8)
        room, end = _SHARED_BYTES - 8, min(own.size + 8, _SHARED_BYTES)
        first = np.zeros(_SHARED_BYTES, np.uint8)
        firsts = np.empty((comm.size, _SHARED_BYTES), np.uint8)
        first[:8].view(np.int64)[0], first[8:end] = own.size, own[:room]
        self._rest(comm.Iallgather(first, firsts), call, in_loop)
        sizes = np.ascontiguousarray(firsts[:, :8]).view(np.int64)[:, 0].tolist()
        parts = [row[8:8 + size] for row, size in zip(firsts, sizes, strict=True)]
        if max(sizes) > room:
            whole = np.empty(sum(sizes), np.uint8)
            self._rest(comm.Iallgatherv(own, (whole, sizes)), call, in_loop)
            parts = np.split(whole, np.cumsum(sizes)[:-1])
        shared = [pickle.loads(part) for part in parts]
        if len({key for _, key, _, _ in shared}) > 1:
            ranks_at: dict[str, list[int]] = {}
            for rank, _, at, _ in shared:
                ranks_at.setdefault(at, []).append(rank)
            where = "; ".join(f"{ranks_text(ranks)} at {at}" for at, ranks in ranks_at.items())
            raise on_all_ranks(RunError(f"ranks are not at the same place of the program: {where}; "
                                        "make the same calls on every rank"))
        return {rank: value for rank, _, _, value in shared}

    def _rest(self, request: Any, call: str, limited: bool) -> None:
        """Wait for the request of a collective."""
        if fault := self.lookout.rest(request, f", {call}", limited):
            self.abort(fault)

    def expect_all_at_end(self) -> None:
        """At the end of the program, wait for all ranks, as MPI does. Ranks that still run the
        training loop learn that this rank has left it.
        """
        atexit.unregister(self._end)  # once, however many models a program makes
        atexit.register(self._end)

    def _end(self) -> None:
        self.lookout.place = f"the end of the program, after {self.lookout.place}"
        together = self.mpi.Is_finalized()
        while not together:
            with suppress(RunError):  # the other ranks raise it, and come here later
                self.share("where it waits for all ranks", None, in_loop=False)
                together = True

    def agree(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank. If it raises an `InputError` or `RunError` on some ranks, all
        ranks raise the error of the lowest of them. Any other error is raised on its own rank, and
        a `RunError` that names it on the others.

        Use it before the first message for actions that can fail on some ranks only (a file that is
        missing on one node).
        """
        error: Exception | None = None
        text, value = "", cast(T, None)
        try:
            value = action()
        except (InputError, RunError) as err:
            error, text = err, str(err)
        except Exception as err:
            error = err
            text = f"rank {self.rank} on {self.hostname} failed with {type(err).__name__}: {err}"
        told = None if error is None else (isinstance(error, InputError), text)
        errors = self.share("a check on all ranks", told, in_loop=False)
        if not isinstance(error, InputError | RunError | None):
            raise on_all_ranks(error)
        for of_input, text in filter(None, errors.values()):
            raise on_all_ranks((InputError if of_input else RunError)(text))
        return value

    def first(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0; return its result, or raise its error, on every rank."""
        value = self.agree(lambda: action() if self.rank == 0 else None)
        return self.comm.bcast(value, root=0)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Inside this context, an error on one rank ends the whole job within seconds."""
        try:
            yield
        except BaseException as err:
            if self.size > 1 and not getattr(err, "everywhere", False):
                if isinstance(err, self.mpi.Exception):
                    time.sleep(LOST_S)
                    lost.note(f"rank {self.rank} on {self.hostname} lost contact with another rank")
                    self.abort(f"lost contact with another rank ({one_line(err)})")
                if not isinstance(err, InputError | RunError | KeyboardInterrupt):
                    traceback.print_exc()
                self.abort(f"failed with {type(err).__name__}: {err}")
            raise

    def abort(self, message: str) -> NoReturn:
        """End the job at once."""
        print(f"hpcpar: rank {self.rank} on {self.hostname}: {visible(message)}; ending the job",
              file=sys.stderr, flush=True)
        # the launcher kills the job at once and loses output that it has not forwarded yet
        time.sleep(0.3)
        self.comm.Abort(1)
        os._exit(1)  # some launchers let a rank live on for a moment


def separate_worlds(size: int, library: str) -> str | None:
    """The error if the launcher started more processes than the world has; else None."""
    by = launcher()
    started = (by.ranks or by.local_ranks) if by else 1
    if by is None or started <= size:
        return None
    worlds = "separate worlds of 1" if size == 1 else f"worlds of {size}"
    return (f"{by.title} started {started} processes but MPI sees {worlds}: launcher and MPI "
            f"library do not match; {by.remedy.format(pmi=pmi_of(library))} "
            f"(mpi4py uses {' '.join(library.replace(',', ' ').split()[:4])})")


@lru_cache(maxsize=1)
def world() -> World:
    """The world of this process.

    Raises
    ------
    InputError
        MPI is not installed, or MPI sees the launcher's processes as separate worlds.
    """
    out = World()
    fault = separate_worlds(out.size, out.library)
    if fault is not None:
        raise InputError(fault)
    return out

