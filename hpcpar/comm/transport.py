"""The ways of messages between ranks."""

from __future__ import annotations

from enum import Enum


class Transport(str, Enum):
    """How messages travel. On CPUs all are MPI's, from memory to memory.

    * staged: MPI, through pinned host memory;
    * direct: MPI, from GPU to GPU (its library must be GPU-aware);
    * nccl: NCCL, from GPU to GPU; the loss travels by MPI.
    """

    STAGED = "staged"
    DIRECT = "direct"
    NCCL = "nccl"

    __str__ = str.__str__
