"""Which input indices an interval of output indices needs, one axis at a time.

Every layer is a product of such one-dimensional relations, so what a rank needs is a box.

Each relation answers twice: `needed` for one interval of plain ints, and `needed_array` for arrays
of intervals at once (NumPy's checks on every call would make the former several times slower).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Interval = tuple[int, int]
#: Starts and stops, or whatever NumPy broadcasts to them.
Indices = npt.ArrayLike
IntArray = npt.NDArray[np.int64]
Intervals = tuple[IntArray, IntArray]


def _together(start: Indices, stop: Indices) -> Intervals:
    """Both as integer arrays of their broadcast shape."""
    a, b = np.broadcast_arrays(np.asarray(start, np.int64), np.asarray(stop, np.int64))
    return a, b


def _inside(lo: Any, hi: Any, extent: int) -> Intervals:
    """[lo, hi) cut to the axis; where nothing is left, an empty interval inside it."""
    lo, hi = np.maximum(lo, 0), np.minimum(hi, extent)
    at = np.minimum(lo, extent)
    return np.where(hi > lo, lo, at), np.where(hi > lo, hi, at)


@dataclass(frozen=True)
class Same:
    """Output index i needs input index i (elementwise layers, and the sample axis)."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start, stop

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        return _together(start, stop)


@dataclass(frozen=True)
class Full:
    """Any output, even none, needs the whole axis (a reduction: input channels, the features of a
    linear layer).
    """

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return 0, extent

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        return np.zeros_like(a), np.zeros_like(b) + extent


@dataclass(frozen=True)
class Window:
    """Convolution and pooling: output i reads i * stride - padding + dilation * (0 .. kernel - 1).
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def pointwise(self) -> bool:
        """True where output i reads input i alone."""
        return (self.kernel == 1) & (self.stride == 1) & (self.padding == 0) & (self.dilation == 1)

    @property
    def span(self) -> int:
        """Input indices from the first to one past the last that a single output reads."""
        return self.dilation * (self.kernel - 1) + 1

    def reach(self, start: int, stop: int) -> Interval:
        """The interval read by outputs [start, stop), padding included (it may leave the axis)."""
        return start * self.stride - self.padding, (stop
                                                    - 1) * self.stride - self.padding + self.span

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        lo, hi = self.reach(start, stop)
        lo, hi = max(0, lo), min(extent, hi)
        return (lo, hi) if hi > lo else (min(lo, extent), min(lo, extent))

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        lo, hi = _inside(a * self.stride - self.padding,
                         (b - 1) * self.stride - self.padding + self.span, extent)
        return np.where(b > a, lo, 0), np.where(b > a, hi, 0)

    def pads(self, start: int, stop: int, extent: int) -> Interval:
        """Padding (before, after) that the local input of outputs [start, stop) has to be given."""
        if stop <= start:
            return 0, 0
        lo, hi = self.reach(start, stop)
        inside = self.needed(start, stop, extent)
        before = min(max(0, -lo), hi - lo)
        return before, (hi - lo) - (inside[1] - inside[0]) - before


@dataclass(frozen=True)
class Groups:
    """Channels of a grouped convolution: output channel o reads the input channels of its group."""

    groups: int
    out_per_group: int
    in_per_group: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        first, last = start // self.out_per_group, (stop - 1) // self.out_per_group
        return first * self.in_per_group, (last + 1) * self.in_per_group

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        first, last = a // self.out_per_group, (b - 1) // self.out_per_group
        return np.where(b > a, first * self.in_per_group, 0), np.where(b > a, (last + 1) * self.in_per_group, 0)


@dataclass(frozen=True)
class Granule:
    """Flatten: feature f belongs to channel f // size."""

    size: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start // self.size, -(-stop // self.size)

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        return a // self.size, -(-b // self.size)


@dataclass(frozen=True)
class Offset:
    """Concatenation: this input's indices [0, extent) are the outputs [start, start + extent).

    Outputs of other inputs need an empty interval of this one.
    """

    start: int
    extent: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        lo, hi = max(start - self.start, 0), min(stop - self.start, self.extent)
        return (lo, hi) if hi > lo else (min(lo, self.extent), min(lo, self.extent))

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        return _inside(a - self.start, b - self.start, self.extent)


@dataclass(frozen=True)
class Columns:
    """A row of weights: input channel i has entries [i * size, (i + 1) * size), and every part has
    the row's `bias` entries besides.
    """

    size: int
    bias: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start * self.size, stop * self.size + self.bias

    def needed_array(self, start: Indices, stop: Indices, extent: int) -> Intervals:
        a, b = _together(start, stop)
        return a * self.size, b * self.size + self.bias


Relation = Same | Full | Window | Groups | Granule | Offset | Columns
