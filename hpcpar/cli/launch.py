"""Facts from the launcher before MPI starts: a process's rank and its share of the node's cores."""

from __future__ import annotations

import os

from hpcpar.errors import InputError

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: Variables in which launchers give the number of ranks on this node.
_LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE",
                "SLURM_STEP_TASKS_PER_NODE")


def local_ranks() -> int:
    """Number of ranks on this node according to the launcher; 1 without one."""
    for name in _LOCAL_RANKS:
        digits = os.environ.get(name, "").split("(")[0].split(",")[0]
        if digits.isdigit():
            return max(1, int(digits))
    return 1


def limit_threads() -> int:
    """Limits a rank's BLAS threads to its share of the node's cores; returns their number.

    A number that the user has set stays. Call it before NumPy is imported; later it has no effect.

    Raises
    ------
    InputError
        The user's setting is not a number.
    """
    share = max(1, len(os.sched_getaffinity(0)) // local_ranks())
    for name in VARIABLES:
        os.environ.setdefault(name, str(share))
    told = os.environ[VARIABLES[0]]
    if not told.isdigit() or told == "0":
        raise InputError(f"{VARIABLES[0]}={told}: give a number of threads, or unset it")
    return int(told)


def started_rank() -> int:
    """This process's rank according to its launcher; 0 without one.

    Rank 0 prints the errors that all ranks share.
    """
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0
