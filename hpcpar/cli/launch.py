"""What the launcher tells a process before MPI starts: its rank, and its share of the node's cores.
"""

from __future__ import annotations

import os

from hpcpar.errors import InputError

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: How launchers tell the number of ranks on this node.
_LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE",
                "SLURM_STEP_TASKS_PER_NODE")


def local_ranks() -> int:
    """Ranks on this node as the launcher tells it; 1 where nothing is told."""
    for name in _LOCAL_RANKS:
        digits = os.environ.get(name, "").split("(")[0].split(",")[0]
        if digits.isdigit():
            return max(1, int(digits))
    return 1


def limit_threads() -> int:
    """Give each rank's BLAS its share of the node's cores, unless the user has set a number;
    returns it.

    To be called before NumPy is imported: afterwards it is too late.

    Raises
    ------
    InputError
        What the user has set is no number.
    """
    share = max(1, len(os.sched_getaffinity(0)) // local_ranks())
    for name in VARIABLES:
        os.environ.setdefault(name, str(share))
    told = os.environ[VARIABLES[0]]
    if not told.isdigit() or told == "0":
        raise InputError(f"{VARIABLES[0]}={told}: give a number of threads, or unset it")
    return int(told)


def started_rank() -> int:
    """This process's rank as its launcher tells it (0 where nothing is told): who prints an error
    that all ranks share.
    """
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0
