"""Crops and flips of stored images, the same under every plan."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.boxes import Box

#: Distinguishes these random numbers from others of the same seed.
_STREAM = 7


class Augmentation(str, Enum):
    """Changes of the images in training: crops at random, and horizontal flips of half of them."""

    CROP = "crop"
    FLIP = "flip"

    __str__ = str.__str__


class Crops:
    """The part of each stored image that the network gets, and whether it is mirrored.

    Both depend on (seed, epoch, sample) alone, so each rank cuts its box from the same crop.

    Parameters
    ----------
    stored, taken : tuple of int
        Extents of an image without channels, in the file and in the network.
    augment : collection of Augmentation
        What is random; without `Augmentation.CROP` the centre is taken.
    samples : int
        Number of samples in the file.
    """

    def __init__(self, stored: tuple[int, ...], taken: tuple[int, ...],
                 augment: Collection[Augmentation], seed: int, samples: int) -> None:
        self.width, self.seed, self.samples = taken[-1], seed, samples
        spare = np.subtract(stored, taken)
        crops, flips = (kind in augment for kind in Augmentation)
        #: Bounds, both included, of the position along each axis and of the flip.
        self.low = np.append(spare * 0 if crops else spare // 2, 0)
        self.high = np.append(spare if crops else spare // 2, int(flips))
        #: Whether samples differ; else all have `low`.
        self.random = bool((self.low < self.high).any())
        self._drawn: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def draw(self, epoch: int) -> NDArray[np.int64]:
        """Position along each axis and flip (0 or 1) [samples, axes + 1] in an epoch."""
        if self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed % 2**64, epoch, _STREAM])
            self._drawn = epoch, rng.integers(self.low, self.high,
                                              (self.samples, len(self.low)), endpoint=True)
        return self._drawn[1]

    def source(self, box: Box, drawn: NDArray[np.int64]) -> Box:
        """The box of the stored image (without channels) that holds a box of the network's."""
        *position, flip = drawn.tolist()
        first, last = box[-1]
        if flip:
            box = (*box[:-1], (self.width - last, self.width - first))
        return tuple((at + a, at + b) for at, (a, b) in zip(position, box, strict=True))
