"""Crops and flips of stored images, which are the same under every plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.options.checks import OneOf, names
from hpcpar.options.fields import OptionGroup, option
from hpcpar.plan.boxes import Box, Interval
from hpcpar.plan.boxes import shape as shape_of

#: Separates these random numbers from others with the same seed.
_STREAM = 7


class Augmentation(str, Enum):
    """Changes of the training images: random crops, and horizontal flips of half of them."""

    CROP = "crop"
    FLIP = "flip"

    __str__ = str.__str__


def augmentations(value: str | Iterable[str]) -> tuple[Augmentation, ...]:
    """Augmentations, from an iterable or comma-separated text."""
    check = OneOf(Augmentation)
    return tuple(Augmentation(check(word)) for word in names(value))


@dataclass(frozen=True, kw_only=True)
class AugmentOptions(OptionGroup, section="network and data"):
    """Changes of the training images."""

    augment: tuple[Augmentation, ...] = option(
        (), augmentations, "train with random crops (of images larger than the network's input), "
        "with horizontal flips, or both; evaluation uses center crops",
        ",".join(Augmentation), needs="data")


class Crops:
    """Position of the crop in each stored image, and whether it is mirrored.

    Both depend only on (seed, epoch, sample), so that all ranks cut their boxes from one crop.

    Parameters
    ----------
    stored, taken : tuple of int
        Extents of an image without channels, in the file and in the network.
    augment : collection of Augmentation
        Random changes; without `Augmentation.CROP`, crops are centered.
    samples : int
        Number of samples in the file.
    """

    def __init__(self, stored: tuple[int, ...], taken: tuple[int, ...],
                 augment: Collection[Augmentation], seed: int, samples: int) -> None:
        self.stored, self.width, self.seed, self.samples = stored, taken[-1], seed, samples
        spare = np.subtract(stored, taken)
        crops, self.flips = (kind in augment for kind in Augmentation)
        #: Inclusive bounds of the position along each axis and of the flip.
        self.low = np.append(spare * 0 if crops else spare // 2, 0)
        self.high = np.append(spare if crops else spare // 2, int(self.flips))
        #: Whether samples differ; if not, all have `low`.
        self.random = bool((self.low < self.high).any())
        self._drawn: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def draw(self, epoch: int) -> NDArray[np.int64]:
        """Positions along the axes and flips (0 or 1) of an epoch: [samples, axes + 1]."""
        if self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed % 2**64, epoch, _STREAM])
            self._drawn = epoch, rng.integers(self.low, self.high,
                                              (self.samples, len(self.low)), endpoint=True)
        return self._drawn[1]

    def window(self, box: Box) -> Box:
        """The box of the stored image that contains a box of the network's image in every draw."""
        out: list[Interval] = [(a + low, b + high) for (a, b), low, high in zip(
            box, self.low.tolist(), self.high.tolist(), strict=False)]
        if self.flips:
            out[-1] = (0, self.stored[-1])
        return tuple(out)

    def cut(self, window: NDArray[Any], box: Box, drawn: NDArray[np.int64]) -> NDArray[Any]:
        """Cuts a box of the network's image from its `window` [..., *image] for one draw."""
        *starts, flip = (drawn - self.low).tolist()
        first, last = box[-1]
        if self.flips:
            starts[-1] = int(drawn[-2]) + (self.width - last if flip else first)
        pixels = tuple(slice(at, at + n) for at, n in zip(starts, shape_of(box), strict=True))
        before = (slice(None),) * (window.ndim - len(pixels))
        piece = window[before + pixels]
        return piece[..., ::-1] if flip else piece
