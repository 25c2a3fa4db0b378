"""Buffers that a rank will allocate, and views of them: arrays without memory."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from hpcpar.plan.boxes import Box, items, local, shape

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """First and last step at which a buffer holds something, in one of the rank's programs."""

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
        It holds gradients of activations.
    zero : bool
        Its steps expect zeros in what none of them writes.
    lives : list of Life
        Filled in by `liveness`.
    """

    layer: str
    gradient: bool
    shape: Shape
    zero: bool = False
    lives: list[Life] = field(default_factory=list)

    @property
    def items(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Crop:
    """The part of an array of box `of` that holds box `part`."""

    part: Box
    of: Box

    @property
    def slices(self) -> tuple[slice[int, int, int], ...]:
        return local(self.part, self.of)


@dataclass(frozen=True, eq=False)
class View:
    """A buffer after some crops and reshapes, in this order; an empty view has no buffer."""

    buffer: Buffer | None
    shape: Shape
    changes: tuple[Crop | Shape, ...] = ()

    def crop(self, part: Box, of: Box) -> View:
        """The view of box `part`, where this is the view of box `of`.

        An empty box may lie outside of it.
        """
        if not items(part):
            return View(None, shape(part))
        if part == of:
            return self
        return View(self.buffer, shape(part), (*self.changes, Crop(part, of)))

    def reshape(self, new: Shape) -> View:
        """The same items in another shape."""
        if new == self.shape:
            return self
        return View(self.buffer, new, (*self.changes, new))

    def rows(self, start: int, stop: int) -> View:
        """Part `start:stop` of the first axis."""
        whole = tuple((0, extent) for extent in self.shape)
        return self.crop(((start, stop), *whole[1:]), whole)

    @property
    def owner(self) -> Buffer | None:
        """The buffer that its items lie in; None where it has no items."""
        return self.buffer if math.prod(self.shape) else None


class PlannedBuffers:
    """The buffers of a rank, one for each key and shape."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Buffer] = {}

    def view(self, key: Hashable, layer: str, gradient: bool, shape: Shape,
             zero: bool = False) -> View:
        """All of a buffer; the first who asks says whether it has to be zero."""
        full = (key, gradient, shape)
        buffer = self._known.get(full)
        if buffer is None:
            buffer = self._known[full] = Buffer(layer, gradient, shape, zero)
        return View(buffer, shape)

    @property
    def all(self) -> tuple[Buffer, ...]:
        return tuple(self._known.values())
