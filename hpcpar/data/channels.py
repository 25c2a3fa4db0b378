"""The order of an array's axes: channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import SampleArray
from hpcpar.errors import InputError

#: Most color channels of an image: a last axis up to this length, after longer ones, looks like
#: channels.
COLORS = 4


def channels_first(name: str, pixels: SampleArray, last: bool | None) -> SampleArray:
    """Images [N, C, H, W] or volumes [N, C, D, H, W].

    Parameters
    ----------
    pixels : SampleArray
        [N, C, H, W], [N, C, D, H, W], or [N, H, W] with one channel.
    last : bool, optional
        Whether the channels are its last axis; by default, an array that looks like that is an
        error.

    Raises
    ------
    InputError
        It has another number of axes, or looks like channels last.
    """
    shape: tuple[int, ...] = pixels.shape
    if len(shape) == 3 and not last:
        shape = (shape[0], 1, *shape[1:])
    if len(shape) not in (4, 5):
        raise InputError(f"{name} holds {pixels.dtype} of shape {shape}; give images [N, C, "
                         "H, W], [N, H, W] or volumes [N, C, D, H, W]")
    if last is None and shape[-1] <= COLORS < min(shape[1:-1]):
        raise InputError(f"{name} holds {shape}, which looks like channels last; store its "
                         f"{shape[-1]} channels first with --channels-last, or keep its "
                         f"{shape[1]} channels with --no-channels-last")
    if not isinstance(pixels, np.ndarray):
        return _Turned(pixels, shape, bool(last))
    return np.moveaxis(pixels.reshape(shape), -1, 1) if last else pixels.reshape(shape)


class _Turned:
    """Images of an array that is read some samples at a time, channels first."""

    def __init__(self, blocks: SampleArray, shape: tuple[int, ...], last: bool) -> None:
        self._blocks, self._shape, self._last = blocks, shape, last
        self.dtype = blocks.dtype
        self.shape = (shape[0], shape[-1], *shape[1:-1]) if last else shape

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        pixels = self._blocks[samples].reshape(-1, *self._shape[1:])
        return np.moveaxis(pixels, -1, 1) if self._last else pixels
