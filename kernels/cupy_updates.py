"""Updates of many weights in one launch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.cupy_launch import Launcher, merge_dims, strides
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array, address

#: Items of an array that one thread block updates, as in update.cu.
PIECE = 1 << 14

#: The arrays of one update, all of one shape, and the numbers of the rule.
_Update = tuple[tuple[Array, ...], tuple[Any, ...]]


class JointUpdates:
    """Collects the updates of a ``with`` block, and launches one kernel for each rule at its end.

    A table of addresses and shapes lies on the device. It is kept for the next block with the same
    arrays.
    """

    def __init__(self, launch: Launcher) -> None:
        self._launch = launch
        self._open = False
        self._due: dict[tuple[str, Any, tuple[Any, ...]], list[tuple[Array, ...]]] = {}
        self._tables: dict[tuple[str, Any, int], tuple[list[tuple[Array, ...]], Array, Array]] = {}

    def __enter__(self) -> None:
        self._open = True

    def __exit__(self, *error: object) -> None:
        due, self._due, self._open = self._due, {}, False
        for (kernel, dtype, numbers), updates in due.items():
            boxes, pieces = self._table(kernel, dtype, updates)
            self._launch(f"{kernel}s", dtype, len(pieces) * THREADS,
                         (boxes, pieces, len(pieces), *numbers))

    def add(self, kernel: str, arrays: tuple[Array, ...], numbers: tuple[Any, ...]) -> bool:
        """Take an update; False outside of a block."""
        if self._open and arrays[0].size:
            self._due.setdefault((kernel, arrays[0].dtype, numbers), []).append(arrays)
        return self._open

    def _table(self, kernel: str, dtype: Any,
               updates: list[tuple[Array, ...]]) -> tuple[Array, Array]:
        key = kernel, dtype, address(updates[0][0])
        known = self._tables.get(key)
        if known is None or not _same(known[0], updates):
            rows = [_row(arrays) for arrays in updates]
            pieces = [(i, first) for i, arrays in enumerate(updates)
                      for first in range(0, arrays[0].size, PIECE)]
            boxes, ends = (cp.asarray(np.array(table, np.int64)) for table in (rows, pieces))
            known = self._tables[key] = updates, boxes, ends
        return known[1:]


def _row(arrays: Sequence[Array]) -> list[int]:
    """Five extents, then the address and five strides of each array."""
    shape, steps = merge_dims(arrays[0].shape, *map(strides, arrays))
    parts = ((address(a), *step) for a, step in zip(arrays, steps, strict=True))
    return [*shape, *itertools.chain(*parts)]


def _same(known: list[tuple[Array, ...]], updates: list[tuple[Array, ...]]) -> bool:
    """True where all arrays lie in the same memory."""
    one, other = (list(itertools.chain(*each)) for each in (known, updates))
    return len(one) == len(other) and all(
        a is b or (address(a), a.shape, a.strides) == (address(b), b.shape, b.strides)
        for a, b in zip(one, other, strict=True))
