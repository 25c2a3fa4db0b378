"""Streams, events, memory and devices of the pretended GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import compiler, driver, runtime
from .capture import Graph
from .memory import MemoryPool, using_allocator
from .streams import Event, Stream, current_stream, get_elapsed_time

__all__ = ["Device", "Event", "Graph", "MemoryPool", "Stream", "alloc_pinned_memory", "compiler",
           "current_stream", "driver", "get_current_stream", "get_elapsed_time", "is_available",
           "runtime", "using_allocator"]

get_current_stream = current_stream


class Device:
    """A card; all are this process's own."""

    _current = 0

    def __init__(self, device: int | None = None) -> None:
        self.id = Device._current if device is None else device

    def use(self) -> None:
        Device._current = self.id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        """Work runs on the same device everywhere."""

    @property
    def pci_bus_id(self) -> str:
        return runtime.deviceGetPCIBusId(self.id)


def is_available() -> bool:
    return runtime.getDeviceCount() > 0


def alloc_pinned_memory(size_bytes: int) -> Any:
    return np.empty(size_bytes, np.uint8)
