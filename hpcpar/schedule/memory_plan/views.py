"""Decides what a buffer and a view of it are before a rank allocates memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.boxes import Box, items, local, shape, whole_box

Shape = tuple[int, ...]
Crop: TypeAlias = "tuple[slice[int, int, int], ...]"


@dataclass(eq=False)
class Buffer:
    """One array of a rank.

    Attributes
    ----------
    layer : str
        The layer that the memory counts for.
    gradient : bool
        The buffer holds activation gradients.
    zero : bool
        Steps rely on zeros in the parts that no step writes.
    lives : list of range
        Moments at which it is in use, counted through the steps of all programs; `liveness` fills
        them in.
    first : int
        Its first item in the memory of all buffers; `MemoryPlan.place` fills it in.
    clears : bool
        It must be zero but shares memory, so each life begins with a clear; likewise.
    """

    layer: str
    gradient: bool
    shape: Shape
    zero: bool = False
    lives: list[range] = field(default_factory=list)
    first: int = 0
    clears: bool = False

    @property
    def items(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class View:
    """A buffer after crops and reshapes, in the order of `changes`; an empty view has no buffer."""

    buffer: Buffer | None
    shape: Shape
    changes: tuple[Crop | Shape, ...] = ()

    def of(self, whole: NDArray[np.float64]) -> NDArray[np.float64]:
        """The view in an array that has the buffer's shape."""
        for change in self.changes:
            is_crop = isinstance(change[0], slice)
            whole = whole[change] if is_crop else whole.reshape(change)
        return whole

    def crop(self, part: Box, of: Box) -> View:
        """The view of box `part`, if this is box `of`; an empty `part` may lie outside."""
        if not items(part):
            return View(None, shape(part))
        if part == of:
            return self
        return View(self.buffer, shape(part), (*self.changes, local(part, of)))

    def reshape(self, new: Shape) -> View:
        """The same items in another shape."""
        if new == self.shape:
            return self
        return View(self.buffer, new, (*self.changes, new))

    def rows(self, start: int, stop: int) -> View:
        """Rows `start:stop` of the first axis."""
        whole = whole_box(self.shape)
        return self.crop(((start, stop), *whole[1:]), whole)

    @property
    def owner(self) -> Buffer | None:
        """The buffer that holds the items; None where the view has no items."""
        return self.buffer if math.prod(self.shape) else None
