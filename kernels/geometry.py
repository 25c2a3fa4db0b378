"""Geometry of convolutions and pooling on a local block.

Kernel size, stride and dilation have one number per image axis. Padding has two, (before, after),
because a block is padded only at the edge of the image.
"""

from __future__ import annotations

from dataclasses import dataclass

#: One number per image axis.
Ints = tuple[int, ...]
#: (before, after) per image axis.
Pads = tuple[tuple[int, int], ...]
#: Size of caches by geometry: larger than the number of different convolutions in a network.
SHAPES = 1024


@dataclass(frozen=True)
class Segment:
    """One group of a convolution in local channel indices.

    Output channels [out_start, out_stop) read input channels [in_start, in_stop). The segments of
    a convolution are disjoint. Each output channel is in a segment; input channels outside all
    segments have zero gradients.
    """

    in_start: int
    in_stop: int
    out_start: int
    out_stop: int


@dataclass(frozen=True)
class ConvSpec:
    """Geometry of a convolution.

    Output (i, ...) reads x[i * stride - pads[0][0] + dilation * u, ...] for u in range(kernel);
    elements outside x are zero. The shape of `out` or `dy` determines the number of outputs; no
    output reads beyond the padding.
    """

    stride: Ints
    dilation: Ints
    pads: Pads
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class PoolSpec:
    """Geometry of pooling; see `ConvSpec`."""

    kernel: Ints
    stride: Ints
    pads: Pads
