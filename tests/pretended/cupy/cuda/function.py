"""Pointers to a kernel's arguments."""

from __future__ import annotations

import ctypes

import numpy as np


class CPointer:
    """The address of an argument, which here has 64 bits."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def value(self) -> np.uint64:
        """The argument, as the driver copies it at a launch."""
        return np.uint64(ctypes.c_uint64.from_address(self.at).value)
