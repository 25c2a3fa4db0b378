"""Boxes and rows of the executor on a module's tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcpar.network.layers.base import Shape
from hpcpar.plan.boxes import Box


def in_module(box: Box, module_shape: Shape) -> Box:
    """The box of a sample with the module's axes.

    The executor treats a signal as an image with one row, and features as an image of one pixel.
    """
    if len(box) == len(module_shape):
        return box
    if len(module_shape) == 2:
        return box[0], box[2] if box[1][1] > box[1][0] else (0, 0)
    return (box[0], *((0, 1) for _ in module_shape[1:]))


def rows_index(rows: NDArray[np.int64]) -> slice | Tensor:
    """Rows, as a slice if they are consecutive, to avoid a copy."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return torch.from_numpy(rows)
