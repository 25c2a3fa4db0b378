"""Which input indices an interval of output indices needs, one axis at a time.

Every layer is a product of such one-dimensional relations, so what a rank needs is a box.
"""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[int, int]


@dataclass(frozen=True)
class Same:
    """Output index i needs input index i (elementwise layers, and the sample axis)."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start, stop


@dataclass(frozen=True)
class Full:
    """Any output, even none, needs the whole axis (a reduction: input channels, the features of a linear layer)."""

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return 0, extent


@dataclass(frozen=True)
class Window:
    """Convolution and pooling: output i reads i * stride - padding + dilation * (0 .. kernel - 1)."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Input indices from the first to one past the last that a single output reads."""
        return self.dilation * (self.kernel - 1) + 1

    def reach(self, start: int, stop: int) -> Interval:
        """The interval read by outputs [start, stop), padding included (it may leave the axis)."""
        return start * self.stride - self.padding, (stop - 1) * self.stride - self.padding + self.span

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        if stop <= start:
            return 0, 0
        lo, hi = self.reach(start, stop)
        lo, hi = max(0, lo), min(extent, hi)
        return (lo, hi) if hi > lo else (min(lo, extent), min(lo, extent))

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


@dataclass(frozen=True)
class Granule:
    """Flatten: feature f belongs to channel f // size."""

    size: int

    def needed(self, start: int, stop: int, extent: int) -> Interval:
        return start // self.size, -(-stop // self.size)


Relation = Same | Full | Window | Groups | Granule
