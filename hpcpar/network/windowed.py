"""Layers whose outputs see a sliding window of the image: convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.base import AXES, Layer, Shape
from hpcpar.network.receptive_field import Window


@dataclass(frozen=True)
class Windowed(Layer):
    """A window per image axis, from the options that `window_options` names (in the order of
    `Window`).
    """

    #: Image axes: 2 or 3.
    dimensions: ClassVar[int] = 2
    window_options: ClassVar[tuple[str, ...]] = ("kernel", "stride", "padding")

    def __post_init__(self) -> None:
        for name in self.window_options:
            given = getattr(self, name)
            value = (given,) * self.dimensions if isinstance(given, int) else tuple(given)
            object.__setattr__(self, name, value)
            least = 0 if name == "padding" else 1
            if len(value) != self.dimensions or any(not isinstance(v, int) or v < least
                                                    for v in value):
                raise InputError(f"layer '{self.name}' ({self.kind}): {name}={given}; give {self.dimensions} whole numbers "
                                 f"of at least {least}")

    @cached_property
    def _windows(self) -> dict[str, Window]:
        options = [getattr(self, name) for name in self.window_options]
        return {axis: Window(*values) for axis, values in zip(AXES[self.dimensions + 2][2:],
                                                              zip(*options, strict=True),
                                                              strict=True)}

    def windows(self) -> tuple[Window, ...]:
        """The window of each image axis in order: (h, w) or (d, h, w)."""
        return tuple(self._windows.values())

    def window(self, axis: str) -> Window:
        """The window along the image axis of this letter."""
        return self._windows[axis]

    def image_out(self, x: Shape, ceil_mode: bool = False) -> Shape:
        """Image extents of the output, as PyTorch computes them (the last ceil-mode window starts
        inside).
        """
        out = []
        for size, win in zip(x[1:], self.windows(), strict=True):
            room = size + 2 * win.padding - win.span
            if room < 0:
                raise InputError(f"layer '{self.name}' ({self.kind}): a window of {win.span} does not fit an input of {size} "
                                 f"with padding {win.padding}; use larger images or more padding")
            n = (room + (win.stride - 1 if ceil_mode else 0)) // win.stride + 1
            if ceil_mode and (n - 1) * win.stride >= size + win.padding:
                n -= 1
            out.append(n)
        return tuple(out)
