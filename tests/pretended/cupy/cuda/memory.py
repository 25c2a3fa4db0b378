"""Memory pools. All memory is the host's; a pool only keeps it alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class MemoryPool:
    """Keeps its memory until it is dropped."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def malloc(self, size_bytes: int) -> None:
        raise AssertionError("arrays are NumPy's: use using_allocator")

    def keep(self, array: Any) -> None:
        self._kept.append(array)

    def total_bytes(self) -> int:
        return sum(array.nbytes for array in self._kept)


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    """Take this thread's memory from a pool's `malloc`."""
    before = current_pool()
    _thread.pool = allocator.__self__  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _thread.pool = before


def current_pool() -> MemoryPool | None:
    """The pool in use; None for the shared one."""
    return getattr(_thread, "pool", None)


_thread = threading.local()
