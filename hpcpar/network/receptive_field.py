"""Receptive fields: the input indices that an interval of output indices needs, along one axis.

A layer's receptive field is the product of one-dimensional relations, so the input region that a
rank needs is a box.

`needed` maps an interval of outputs to one of inputs. Intervals are half-open, [start, stop);
`extent` is the length of the input axis. An interval beyond the axis wraps around (`Periodic`).
"""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[int, int]


@dataclass(frozen=True)
class Same:
    """Output i needs input i: elementwise layers, and the sample axis."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start, stop


@dataclass(frozen=True)
class Full:
    """Every interval of outputs, even an empty one, needs the whole axis: a reduction."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return 0, extent


class Sliding:
    """Relations along an image axis that is cut like the output's axis: parts need a halo."""


@dataclass(frozen=True)
class SlidingKernel(Sliding):
    """The options of windows, and of their adjoints."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Extent of the inputs of one output, or of the outputs that one input reaches."""
        return self.dilation * (self.kernel - 1) + 1


@dataclass(frozen=True)
class Window(SlidingKernel):
    """Output i needs i * stride - padding + dilation * (0 .. kernel - 1): convolution, pooling."""

    @property
    def pointwise(self) -> bool:
        """True if output i needs input i only."""
        return self == Window(1)

    def reach(self, start: int, stop: int) -> Interval:
        """Receptive field of outputs [start, stop) with padding; it may exceed the axis."""
        first = start * self.stride - self.padding
        last = (stop - 1) * self.stride - self.padding
        return first, last + self.span

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        lo, hi = self.reach(start, stop)
        lo, hi = max(0, lo), min(extent, hi)
        return (lo, hi) if hi > lo else (min(lo, extent), min(lo, extent))

    def pads(self, start: int, stop: int, extent: int) -> Interval:
        """Padding (before, after) of the local input of outputs [start, stop)."""
        if stop <= start:
            return 0, 0
        lo, hi = self.reach(start, stop)
        inside = self.needed(start, stop, extent)
        before = min(max(0, -lo), hi - lo)
        return before, (hi - lo) - (inside[1] - inside[0]) - before


@dataclass(frozen=True)
class Transposed(SlidingKernel):
    """Transposed convolution: output i needs every input j that reaches it.

    Input j reaches outputs j * stride - padding + dilation * (0 .. kernel - 1).
    """

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        lo = -(-(start + self.padding + 1 - self.span) // self.stride)
        hi = (stop - 1 + self.padding) // self.stride + 1
        return min(max(lo, 0), extent), min(max(hi, 0), extent)

    def pads(self, start: int, stop: int, extent: int) -> Interval:
        """Padding (before, after) of outputs [start, stop) as inputs of the adjoint convolution.

        It is negative at an end that the windows of the needed inputs do not reach.
        """
        lo, hi = self.needed(start, stop, extent)
        before = self.padding + start - lo * self.stride
        return before, (hi - 1 - lo) * self.stride + self.span - before - (stop - start)


@dataclass(frozen=True)
class Interpolated(Sliding):
    """Output i needs inputs (i * up + shift) // down + (0 .. taps - 1), clipped to the axis."""

    up: int
    down: int
    shift: int = 0
    taps: int = 2

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        lo = (start * self.up + self.shift) // self.down
        hi = ((stop - 1) * self.up + self.shift) // self.down + self.taps
        return min(max(lo, 0), extent - 1), min(max(hi, 1), extent)


@dataclass(frozen=True)
class Periodic(Sliding):
    """Output i needs input i - before; indices wrap around, so that -1 is the last input."""

    before: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return (start - self.before, stop - self.before) if stop > start else (0, 0)


@dataclass(frozen=True)
class Proportional(Sliding):
    """Parts of the `whole` outputs divide the input in the same proportions, without overlap."""

    whole: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start * extent // self.whole, stop * extent // self.whole


@dataclass(frozen=True)
class Groups:
    """An output channel of a grouped convolution needs the input channels of its group."""

    groups: int
    out_per_group: int
    in_per_group: int

    def mixed_by(self, parts: int) -> bool:
        """True where a part of the outputs lies in both of two groups; then all parts need both."""
        return self.groups == 2 and parts > 1 and parts % 2 == 1

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        first, last = start // self.out_per_group, (stop - 1) // self.out_per_group
        return first * self.in_per_group, (last + 1) * self.in_per_group


@dataclass(frozen=True)
class SharedGroups(Groups):
    """Groups with shared sums: parts that do not align with the groups need all channels."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return 0, extent


@dataclass(frozen=True)
class Granule:
    """Feature f of a flattened image needs channel f // size."""

    size: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start // self.size, -(-stop // self.size)


class Irregular:
    """Relations whose parts are not blocks of the axis."""


@dataclass(frozen=True)
class Offset(Irregular):
    """One input of a concatenation: its indices [0, extent) are outputs [start, start + extent).

    Outputs from other inputs need an empty interval.
    """

    start: int
    extent: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        lo, hi = max(start - self.start, 0), min(stop - self.start, self.extent)
        return (lo, hi) if hi > lo else (min(lo, self.extent), min(lo, self.extent))


@dataclass(frozen=True)
class Picked(Irregular):
    """Output i is input ``places[i]``."""

    places: tuple[int, ...]

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        inputs = self.places[start:stop]
        return (min(inputs), max(inputs) + 1) if inputs else (0, 0)


@dataclass(frozen=True)
class Unflattened(Irregular):
    """Output i needs inputs i * size .. (i + 1) * size - 1."""

    size: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start * self.size, stop * self.size


@dataclass(frozen=True)
class Folded(Sliding):
    """Output i is input i - before, folded back into the axis: the image is mirrored at its ends,
    or its last pixel is repeated (`edge`).
    """

    before: int
    edge: bool = False

    def place(self, i: int, extent: int) -> int:
        """Input of output `i`."""
        i, last = i - self.before, extent - 1
        return min(max(i, 0), last) if self.edge else last - abs(last - abs(i))

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        turns = (start, stop - 1, self.before, self.before + extent - 1)
        places = [self.place(i, extent) for i in turns if start <= i < stop]
        return min(places), max(places) + 1


@dataclass(frozen=True)
class Columns:
    """Entries of a weight row that belong to input channels.

    Input channel i has the entries [i * size, (i + 1) * size). The `bias` entries of the row are
    appended to every interval.
    """

    size: int
    bias: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start * self.size, stop * self.size + self.bias


Relation = (Same | Full | Window | Transposed | Interpolated | Periodic | Proportional | Folded
            | Groups | Granule | Offset | Picked | Unflattened | Columns)
