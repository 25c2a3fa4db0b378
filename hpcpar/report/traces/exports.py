"""Programs of ranks as files for other simulators: Chakra execution traces (ASTRA-sim), GOAL
(LogGOPSim, ATLAHS), and time-independent traces (SimGrid's SMPI).

They contain steps and messages, but not the adding and copying of received data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from hpcpar.io.files import atomic_folder, atomic_path
from hpcpar.report.traces.chakra import encoded
from hpcpar.simulation.programs import Computation, ProgramPart, Programs

#: Speed that hosts of SimGrid's platform must have, so that steps take their predicted time.
HOST_FLOPS_PER_S = 1e9
#: SMPI's number of MPI_BYTE.
_MPI_BYTE = 6


def goal(programs: Programs, path: str) -> None:
    """Writes a GOAL file: CPU 0 computes (ns), and CPU 1 sends messages meanwhile."""
    with atomic_path(path, "GOAL file") as temporary, open(temporary, "w") as f:
        f.write(f"num_ranks {programs.ranks}\n")
        for rank in range(programs.ranks):
            f.write(f"rank {rank} {{\n")
            f.writelines(_goal_lines(programs.of(rank)))
            f.write("}\n")


def _goal_lines(program: Iterable[ProgramPart]) -> Iterator[str]:
    for part in program:
        if isinstance(part, Computation):
            yield f"l{part.number}: calc {round(1e9 * part.seconds)} cpu 0\n"
        else:
            kind, to = ("send", "to") if part.sends else ("recv", "from")
            yield (f"l{part.number}: {kind} {part.n_bytes}b {to} {part.peer} tag {part.tag} "
                   "cpu 1 nic 0\n")
        for before in part.after:
            yield f"l{part.number} requires l{before}\n"


def simgrid(programs: Programs, path: str) -> None:
    """Writes a folder with a trace of each rank, and ``trace.txt``, which lists them.

    A rank is one thread: it continues a collective's later rounds where it waits for the
    collective.
    """
    names = [f"rank{rank}.txt" for rank in range(programs.ranks)]
    with atomic_folder(path, r"trace\.txt|rank\d+\.txt") as temporary:
        for rank, name in enumerate(names):
            with open(os.path.join(temporary, name), "w") as f:
                f.writelines(_simgrid_lines(rank, programs.of(rank)))
        with open(os.path.join(temporary, "trace.txt"), "w") as f:
            f.writelines(f"{os.path.join(os.path.abspath(path), name)}\n" for name in names)


def _simgrid_lines(rank: int, program: Iterable[ProgramPart]) -> Iterator[str]:
    waits: dict[int, str] = {}
    yield f"{rank} init\n"
    for part in program:
        yield from (waits.pop(number) for number in part.after if number in waits)
        if isinstance(part, Computation):
            yield f"{rank} compute {HOST_FLOPS_PER_S * part.seconds:.0f}\n"
            continue
        kind, ends = ("isend", (rank, part.peer)) if part.sends else ("irecv", (part.peer, rank))
        yield f"{rank} {kind} {part.peer} {part.tag} {part.n_bytes} {_MPI_BYTE}\n"
        waits[part.number] = f"{rank} wait {ends[0]} {ends[1]} {part.tag}\n"
    yield from waits.values()
    yield f"{rank} finalize\n"


def chakra(programs: Programs, path: str) -> None:
    """Writes a folder with a trace ``FOLDER.RANK.et`` of each rank."""
    name = os.path.basename(os.path.abspath(path))
    with atomic_folder(path, re.escape(name) + r"\.\d+\.et") as temporary:
        for rank in range(programs.ranks):
            with open(os.path.join(temporary, f"{name}.{rank}.et"), "wb") as f:
                f.writelines(encoded(rank, programs.of(rank)))


#: Writers by format.
FORMATS: dict[str, Callable[[Programs, str], None]] = {
    "chakra": chakra, "goal": goal, "simgrid": simgrid}
