"""The interface of messages between GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

#: A cupy.ndarray.
DeviceArray = Any


class DeviceGroup(ABC):
    """Ranks whose GPUs exchange messages directly, in the order of the current stream.

    Every member submits the same operations in the same order. Operations work in place on
    contiguous device arrays.
    """

    size: int
    #: Index of this process in the group.
    rank: int

    @abstractmethod
    def exchange(self, sends: Sequence[tuple[DeviceArray, int]],
                 receives: Sequence[tuple[DeviceArray, int]]) -> None:
        """Send and receive messages (array, other member) at the same time."""

    @abstractmethod
    def allreduce(self, array: DeviceArray) -> None:
        """array = sum of array over the members."""

    @abstractmethod
    def allgather(self, blocks: Sequence[DeviceArray]) -> None:
        """blocks[k] = blocks[k] of member k. Blocks are adjacent in memory; sizes may differ."""

    @abstractmethod
    def reduce_scatter(self, blocks: Sequence[DeviceArray]) -> None:
        """blocks[rank] = sum of blocks[rank] over the members; other blocks become undefined."""

    @abstractmethod
    def fault(self) -> str:
        """The first error in an operation so far, or empty."""
