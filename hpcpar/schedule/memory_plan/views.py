"""Buffers that a rank will allocate, and views of them; neither has memory yet."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.boxes import Box, items, local, shape

Shape = tuple[int, ...]
Crop: TypeAlias = "tuple[slice[int, int, int], ...]"


@dataclass(frozen=True)
class Life:
    """The first and last step at which a buffer is in use, in one of the rank's programs."""

    program: int
    first: int
    last: int


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
    lives : list of Life
        `liveness` fills them in.
    """

    layer: str
    gradient: bool
    shape: Shape
    zero: bool = False
    lives: list[Life] = field(default_factory=list)

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
        whole = tuple((0, extent) for extent in self.shape)
        return self.crop(((start, stop), *whole[1:]), whole)

    @property
    def owner(self) -> Buffer | None:
        """The buffer that holds the items; None where the view has no items."""
        return self.buffer if math.prod(self.shape) else None


class PlannedBuffers:
    """The buffers of a rank, one per key, role and shape."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Buffer] = {}

    def view(self, key: Hashable, layer: str, gradient: bool, shape: Shape,
             zero: bool = False) -> View:
        """A view of a whole buffer; the first call for a buffer decides whether it must be zero."""
        full_key = (key, gradient, shape)
        buffer = self._known.get(full_key)
        if buffer is None:
            buffer = self._known[full_key] = Buffer(layer, gradient, shape, zero)
        return View(buffer, shape)

    @property
    def all(self) -> tuple[Buffer, ...]:
        return tuple(self._known.values())
