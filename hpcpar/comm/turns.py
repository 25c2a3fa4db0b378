"""Ranks that share a core take turns on it: who computes has it to itself, and hands it on when it
has to wait.

Left to the operating system, ranks that wait and look whether something has come take the core from
those that compute, or sleep when it comes; how long all that takes then depends on the system's
mood.
"""

from __future__ import annotations

import mmap
import os
import select
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from hpcpar.comm.crowd import own_cores
from hpcpar.comm.world import World
from hpcpar.errors import RunError

#: A rank that nobody hands the core to looks after so long (ms): the others may be busy with what
#: hands nothing on, as files.
_LONGEST_MS = 2.0
#: Where ranks of a machine may meet, the best first: containers of one need not have both in
#: common.
_PLACES = (Path("/dev/shm"), Path("/tmp"), Path(tempfile.gettempdir()))


class Turns:
    """The ranks on a core, in a ring.

    A byte for each rank, in memory that all share, says whether it waits for its turn; it gets it
    through a pipe of its own.

    Parameters
    ----------
    core_of : dict of int to int
        The cores of all ranks of this rank's machine.

    Raises
    ------
    RunError
        On every rank, if there is no place where they can meet.
    """

    def __init__(self, world: World, core_of: dict[int, int]) -> None:
        places = world.comm.allgather([_identity(place) or (-1, world.rank) for place in _PLACES])
        at, meeting = meet(places, list(core_of), world.rank)
        place = _PLACES[at]
        mates = [rank for rank in meeting if core_of[rank] == core_of[world.rank]]
        first = meeting[0] == world.rank
        folders = world.comm.allgather(world.agree(lambda: _folder(place, meeting) if first
                                                   else None))
        folder = Path(folders[meeting[0]])
        try:
            # all have opened theirs when they agree
            self._waits, self._pipes = world.agree(lambda: _open(folder, mates))
        finally:
            if first:
                shutil.rmtree(folder, ignore_errors=True)
        self._rank, turn = world.rank, mates.index(world.rank)
        #: The other ranks on this rank's core, the next one first.
        self.mates = [*mates[turn + 1:], *mates[:turn]]
        self._mine = self._pipes[world.rank]
        self._turn = select.poll()
        self._turn.register(self._mine, select.POLLIN)

    def hand_on(self) -> None:
        """If all on the core wait, let the next one look; returns when it is this rank's turn
        again.
        """
        waits, rank = self._waits, self._rank
        waits[rank] = 1
        for mate in self.mates:
            if not waits[mate]:
                break
        else:
            waits[self.mates[0]] = 0
            os.write(self._pipes[self.mates[0]], b".")
        if self._turn.poll(_LONGEST_MS):
            os.read(self._mine, 64)
        waits[rank] = 0


def meet(places: Sequence[Sequence[tuple[int, int]]], ranks: list[int], rank: int) -> tuple[int, list[int]]:
    """Where the ranks of a machine meet: in the place that falls into fewest parts, the first of
    such; and with whom a rank does.

    Containers that have no place in common do not see each other.

    Parameters
    ----------
    places : sequence
        Of every rank of the job, what each place is known by.
    """
    at = min(range(len(places[rank])), key=lambda i: len({places[r][i] for r in ranks}))
    return at, [r for r in ranks if places[r][at] == places[rank][at]]


def _identity(place: Path) -> tuple[int, int] | None:
    """What a place is known by in all containers that have it; None where nothing can be written.
    """
    if not os.access(place, os.W_OK):
        return None
    stat = place.stat()
    return stat.st_dev, stat.st_ino


def _folder(place: Path, ranks: list[int]) -> str:
    """A folder with a byte for each rank that waits, and a pipe for each rank."""
    try:
        folder = tempfile.mkdtemp(prefix="hpcpar-", dir=place)
        Path(folder, "waits").write_bytes(bytes(max(ranks) + 1))
        for rank in ranks:
            os.mkfifo(f"{folder}/{rank}", 0o600)
    except OSError as err:
        raise RunError(f"more ranks than cores, and they cannot meet in {place}: {err.strerror}; start no more than cores") from err
    return folder


def _open(folder: Path, ranks: list[int]) -> tuple[mmap.mmap, dict[int, int]]:
    try:
        with open(folder / "waits", "r+b") as file:
            waits = mmap.mmap(file.fileno(), 0)
        return waits, {rank: os.open(folder / str(rank), os.O_RDWR | os.O_NONBLOCK)
                       for rank in ranks}
    except OSError as err:
        raise RunError(f"more ranks than cores, and they cannot meet in {folder}: {err.strerror}; start no more than cores") from err


@lru_cache(maxsize=1)
def turns(world: World) -> Turns:
    """Those of this process, which from then on stays on its core. Every rank must call it."""
    core_of = own_cores(world)
    out = Turns(world, core_of)
    os.sched_setaffinity(0, {core_of[world.rank]})
    return out
