"""One piece of memory for all blocks of a rank: arrays that are never alive at the same time lie in
the same place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcpar.comm.packing import ALIGNMENT_BYTES, most, pack
from hpcpar.kernels.interface import Array, Backend


class Arena:
    """Gives arrays by key: first placeholders, from which it learns their sizes; after `place` the
    arrays themselves.

    A placeholder has no memory behind it that is ever touched.
    """

    def __init__(self, backend: Backend, dtype: str) -> None:
        self.backend, self.dtype = backend, np.dtype(dtype)
        self._known: dict[Any, Array] = {}
        self._zero: set[Any] = set()
        self._starts: list[int] = []
        self._keys: list[Any] = []
        self._slab: Array = None
        #: What is alive at once at the most, and the piece of memory.
        self.alive_bytes = self.laid_bytes = 0
        #: Keys whose arrays begin as zero, and have others in the same place.
        self.stained: set[Any] = set()

    def __call__(self, key: Any, shape: tuple[int, ...], zero: bool = False) -> Array:
        full = (key, shape)
        if full not in self._known:
            assert self._slab is None, f"nobody asked for {full} before the arena was laid out"
            self._known[full] = np.empty(shape, self.dtype)
            if zero:
                self._zero.add(full)
        return self._known[full]

    def sized(self) -> None:
        """Everything has been asked for: `owner` may be used."""
        spans = sorted((_address(a), key) for key, a in self._known.items() if a.size)
        self._starts, self._keys = [s for s, _ in spans], [key for _, key in spans]

    def owner(self, view: Array) -> Any:
        """The key of the array that a view is of; None of an array that is not from here, or an
        empty one.
        """
        if view is None or not view.size:
            return None
        at = bisect.bisect_right(self._starts, _address(view)) - 1
        if at < 0 or _address(view) >= self._starts[at] + self._known[self._keys[at]].nbytes:
            return None
        return self._keys[at]

    def place(self, alive: Mapping[Any, int]) -> None:
        """Lay out the arrays by the moments (bits) at which each is alive."""
        keys = list(self._known)
        unit = ALIGNMENT_BYTES // self.dtype.itemsize
        sizes = [-(-self._known[key].size // unit) * unit for key in keys]
        places, total = pack(sizes, [alive.get(key, 0) for key in keys])
        total = max(total, *sizes, 0)  # what nobody touches lies anywhere
        self._slab = self.backend.zeros((total,), self.dtype)
        self.laid_bytes = total * self.dtype.itemsize
        self.alive_bytes = most([self._known[key].nbytes for key in keys],
                                [alive.get(key, 0) for key in keys])
        for key, at, size in zip(keys, places, sizes, strict=True):
            n = math.prod(key[1])
            self._known[key] = self._slab[at:at + n].reshape(key[1])
            if key in self._zero and size and _meets(at, at + size, places, sizes) > 1:
                self.stained.add(key)

    def __getitem__(self, key: Any) -> Array:
        return self._known[key]


def _meets(start: int, stop: int, places: list[int], sizes: list[int]) -> int:
    """How many arrays lie in a part of the memory."""
    return sum(1 for at, size in zip(places, sizes, strict=True) if size and at < stop
               and start < at + size)


def _address(a: np.ndarray) -> int:
    return int(a.__array_interface__["data"][0])
