"""Base class of layers with a sliding window over the image: convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import AXES, Layer, Shape
from hpcpar.network.receptive_field import Window


@dataclass(frozen=True)
class Windowed(Layer):
    """A layer with one sliding window per image axis."""

    #: Number of image axes: 2 or 3.
    dimensions: ClassVar[int] = 2
    #: True for layers of signals (C, 1, W), whose windows have a single number.
    of_signals: ClassVar[bool] = False
    #: Fields that describe the window, in the order of the fields of `Window`.
    window_options: ClassVar[tuple[str, ...]] = ("kernel", "stride", "padding")

    def __post_init__(self) -> None:
        for name in self.window_options:
            self._set_per_axis(name)

    def _set_per_axis(self, name: str) -> None:
        """Check a field, and expand a single number to one per image axis."""
        given = getattr(self, name)
        value = (given,) if isinstance(given, int) else tuple(given)
        least = 0 if name.endswith("padding") else 1
        if len(value) == 1:
            value = (least, *value) if self.of_signals else value * self.dimensions
        object.__setattr__(self, name, value)
        valid = all(isinstance(v, int) and v >= least for v in value)
        if len(value) != self.dimensions or not valid:
            raise InputError(f"layer '{self.name}' ({self.kind}): {name}={given}; give "
                             f"{self.dimensions} whole numbers of at least {least}")

    @cached_property
    def _windows(self) -> dict[str, Window]:
        options = [getattr(self, name) for name in self.window_options]
        windows = map(Window, *options)
        return dict(zip(AXES[self.dimensions + 2][2:], windows, strict=True))

    def windows(self) -> tuple[Window, ...]:
        """Windows of the image axes in order: (h, w) or (d, h, w)."""
        return tuple(self._windows.values())

    def window(self, axis: str) -> Window:
        """Window along an image axis: h, w or d."""
        return self._windows[axis]

    def image_out(self, x: Shape, ceil_mode: bool = False) -> Shape:
        """Image extents of the output, as in PyTorch.

        With `ceil_mode` a last, partial window counts if it starts inside the image or the padding
        before it.
        """
        if self.of_signals and x[1] != 1:
            raise InputError(f"layer '{self.name}' ({self.kind}) needs a signal C x W, but its "
                             f"input has shape {x}")
        extents = []
        for size, win in zip(x[1:], self.windows(), strict=True):
            travel = size + 2 * win.padding - win.span
            if travel < 0:
                raise InputError(
                    f"layer '{self.name}' ({self.kind}): a window of {win.span} does not fit "
                    f"an input of {size} with padding {win.padding}; use larger images or more "
                    "padding")
            n = (travel + (win.stride - 1 if ceil_mode else 0)) // win.stride + 1
            if ceil_mode and (n - 1) * win.stride >= size + win.padding:
                n -= 1
            extents.append(n)
        return tuple(extents)
