"""Messages between GPUs, as the communicator asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

#: A cupy.ndarray.
DeviceArray = Any


class DeviceGroup(ABC):
    """Ranks whose GPUs exchange messages by themselves, in the order of the current stream.

    Every member submits the same operations in the same order. Arrays are contiguous, on the
    device, and used in place.
    """

    size: int
    #: This process's place in the group.
    rank: int

    @abstractmethod
    def exchange(self, sends: Sequence[tuple[DeviceArray, int]],
                 receives: Sequence[tuple[DeviceArray, int]]) -> None:
        """(array, member) of messages that travel together."""

    @abstractmethod
    def allreduce(self, array: DeviceArray) -> None:
        """array = its sum over the members."""

    @abstractmethod
    def allgather(self, blocks: Sequence[DeviceArray]) -> None:
        """blocks[k] = that of member k. They lie one after the other, and may differ in size."""

    @abstractmethod
    def reduce_scatter(self, blocks: Sequence[DeviceArray]) -> None:
        """blocks[rank] = its sum over the members; the others are left undefined."""

    @abstractmethod
    def fault(self) -> str:
        """The first fault of an operation so far; empty where all is well."""
