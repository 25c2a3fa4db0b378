"""Convolutions that cuDNN refuses, for tests of the real and the pretended library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcpar.kernels.cudnn_graphs import ConvOperation, ConvProblem, StridedShape


def packed(*dims: int) -> StridedShape:
    """The shape of a contiguous array."""
    return StridedShape.of(np.empty(dims, np.float32))


ACCEPTED = ConvProblem(ConvOperation.FORWARD, packed(2, 8, 6, 6), packed(16, 8, 3, 3),
                       packed(2, 16, 6, 6), ((1, 1), (1, 1)), (1, 1), (1, 1), "float32")
REFUSED = {
    "fewer rows": replace(ACCEPTED, y=packed(2, 16, 5, 6)),
    "part of a group": replace(ACCEPTED, x=packed(2, 9, 6, 6)),
    "outputs in unequal groups": replace(ACCEPTED, x=packed(2, 24, 6, 6)),
    "other outputs": replace(ACCEPTED, y=packed(2, 15, 6, 6)),
    "other images": replace(ACCEPTED, y=packed(1, 16, 6, 6)),
    "no image": replace(ACCEPTED, x=packed(0, 8, 6, 6), y=packed(0, 16, 6, 6)),
    "negative padding": replace(ACCEPTED, pads=((-1, 3), (1, 1))),
    "overlapping x": replace(ACCEPTED, x=StridedShape((2, 8, 6, 6), (288, 36, 4, 1))),
    "overlapping y": replace(ACCEPTED, y=StridedShape((2, 16, 6, 6), (576, 36, 4, 1))),
}
