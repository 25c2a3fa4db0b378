"""How messages travel between ranks."""

from __future__ import annotations

from enum import Enum


class Transport(str, Enum):
    """How messages travel between GPUs; between CPUs, MPI moves them from memory to memory.

    * staged: by MPI, through pinned host memory;
    * direct: by MPI, from GPU to GPU (the library must be GPU-aware);
    * nccl: by NCCL, from GPU to GPU.
    """

    STAGED = "staged"
    DIRECT = "direct"
    NCCL = "nccl"

    __str__ = str.__str__
