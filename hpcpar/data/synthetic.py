"""Synthetic data that networks can learn: noise plus coarse patterns that encode the truth."""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.dataset import BLOCK_BYTES, Progress, create_split
from hpcpar.data.room import require_room
from hpcpar.errors import InputError
from hpcpar.io.hdf5 import replacing
from hpcpar.network.layers.base import shape_text

Value = TypeVar("Value", bound=np.generic)
#: Upper bounds of the uniform noise and of the pattern; a pixel is their sum.
_NOISE, _PATTERN = 160, 96


class _ClassPatterns:
    """Labels: each class has a random pattern of 8 tiles along each image axis."""

    def __init__(self, rng: np.random.Generator, classes: int, shape: tuple[int, ...]) -> None:
        self.classes = classes
        self.tiles = rng.integers(0, _PATTERN, (classes, shape[0], *(8 for _ in shape[1:])),
                                  dtype=np.uint8)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[Any]:
        """Random latent values of `count` samples, which set pattern and ground truth."""
        return rng.integers(0, self.classes, count)

    def truth(self, latent: NDArray[Any]) -> NDArray[Any]:
        """Ground truth of samples with these latent values."""
        return latent

    def patterns(self, latent: NDArray[Any]) -> NDArray[np.uint8]:
        """Tiles [n, c, ...] of samples with these latent values."""
        return self.tiles[latent]


class _TargetPatterns:
    """Targets: each output is a smooth function, from 1 to -1, of the brightness of its own tiles.

    There are at least two tiles per output and two along each image axis. Tiles are as large as
    possible, so that they survive pooling.
    """

    def __init__(self, rng: np.random.Generator, outputs: int, shape: tuple[int, ...]) -> None:
        along = next(t for t in itertools.count(2) if shape[0] * t ** len(shape[1:]) >= 2 * outputs)
        tiles = (shape[0], *(along for _ in shape[1:]))
        self.owner = rng.permutation(np.arange(math.prod(tiles)) % outputs).reshape(tiles)
        self.outputs = outputs

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[Any]:
        return rng.random((count, self.outputs), np.float32)

    def truth(self, latent: NDArray[Any]) -> NDArray[Any]:
        return np.cos(np.pi * latent)

    def patterns(self, latent: NDArray[Any]) -> NDArray[np.uint8]:
        return (_PATTERN * latent).astype(np.uint8)[:, self.owner]


class _PixelPatterns:
    """Ground truth per pixel: each sample has 8 tiles along each image axis.

    Tiles of a class share a random color. Each target is a smooth function of the brightness of one
    channel.
    """

    def __init__(self, rng: np.random.Generator, classes: int, targets: int,
                 shape: tuple[int, ...], extents: tuple[int, ...]) -> None:
        self.classes, self.targets, self.shape, self.extents = classes, targets, shape, extents
        self.colors = rng.integers(0, _PATTERN, (classes, shape[0]), dtype=np.uint8)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[Any]:
        tiles = tuple(8 for _ in self.shape[1:])
        if self.targets:
            return rng.random((count, self.targets, *tiles), np.float32)
        return rng.integers(0, self.classes, (count, 1, *tiles))

    def truth(self, latent: NDArray[Any]) -> NDArray[Any]:
        pixels = _stretched(latent, self.extents)
        return np.cos(np.pi * pixels) if self.targets else pixels[:, 0]

    def patterns(self, latent: NDArray[Any]) -> NDArray[np.uint8]:
        if self.targets:
            return (_PATTERN * latent).astype(np.uint8)[:, np.arange(self.shape[0]) % self.targets]
        return np.moveaxis(self.colors[latent[:, 0]], -1, 1)


def synthetic(path: str, shape: tuple[int, ...], classes: int, samples: int, seed: int = 0, *,
              targets: int = 0, test_samples: int = 0, pixels: bool = False,
              extents: tuple[int, ...] = (), progress: Progress | None = None) -> None:
    """Write a data file of synthetic uint8 images or volumes.

    Parameters
    ----------
    shape : tuple of int
        Sample shape (C, H, W), (C, D, H, W) or (C, W).
    classes : int
        Number of classes.
    samples, test_samples : int
        Number of samples in the training and test splits.
    targets : int
        Number of regression targets per image or pixel; 0 for labels.
    pixels : bool
        Whether each pixel has its own label, or at most one target per channel.
    extents : tuple of int
        Extents of the labels or targets per pixel, by default the image's; they show the same
        patterns, enlarged or reduced.

    Raises
    ------
    InputError
        A number is out of range, or the file cannot be written.
    """
    if (len(shape) not in (2, 3, 4) or min(*shape, classes, samples) < 1
        or min(test_samples, seed, targets) < 0):
        what = f"{targets} targets" if targets else f"{classes} classes"
        raise InputError(f"synthetic data of {samples} + {test_samples} images {shape} with "
                         f"{what}, seed {seed}: give positive numbers")
    if pixels and targets > shape[0]:
        raise InputError(f"{targets} targets per pixel of images {shape}: give at most one per "
                         "channel")
    extents = (extents or shape[1:]) if pixels else ()
    if pixels and not len(shape[1:]) <= len(extents) <= max(2, len(shape[1:])):
        raise InputError(f"labels of {shape_text(extents)} for images {shape_text(shape)}: give "
                         "one number per image axis")
    truths = (samples + test_samples) * max(1, targets) * (8 ** len(shape[1:]) if pixels else 1)
    require_room(path, samples + test_samples, shape, 1,
                 8 * (truths + max(8 ** len(shape) * classes, 2 * targets)))
    if extents:
        require_room(path, samples + test_samples, (max(1, targets), *extents), 8)
    layout = np.random.default_rng([seed, 0])
    content: _PixelPatterns | _TargetPatterns | _ClassPatterns
    if pixels:
        content = _PixelPatterns(layout, classes, targets, shape, extents)
    else:
        content = (_TargetPatterns(layout, targets, shape) if targets
                   else _ClassPatterns(layout, classes, shape))
    truth = ((targets,) if targets else ()) + extents
    kind = "f4" if targets else "u1" if pixels and classes <= 256 else "i8"
    largest = max(math.prod(shape), math.prod(extents))
    total, done, block = samples + test_samples, 0, max(1, BLOCK_BYTES // largest)
    with replacing(path, "data file") as f:
        for number, (prefix, count) in enumerate((("", samples), ("test_", test_samples))):
            if not count:
                continue
            rng = np.random.default_rng([seed, 1 + number])
            split = create_split(f, prefix, count, shape, "u1", truth, kind)
            latent = content.draw(rng, count)
            for start in range(0, count, block):
                stop = min(count, start + block)
                images = rng.integers(0, _NOISE, (stop - start, *shape), dtype=np.uint8)
                images += _stretched(content.patterns(latent[start:stop]), shape[1:])
                split.images[start:stop] = images
                split.truth[start:stop] = content.truth(latent[start:stop])
                done += stop - start
                if progress:
                    progress(done, total)
        deviation = math.sqrt((_NOISE**2 + _PATTERN**2) / 12)
        f.attrs.update(source=f"synthetic, seed {seed}", mean=(_NOISE + _PATTERN) / 2 - 1,
                       scale=1 / deviation)
        if not targets:
            f.attrs["classes"] = classes


def _stretched(tiles: NDArray[Value], image: tuple[int, ...]) -> NDArray[Value]:
    """Tiles [n, c, ...] enlarged to images; signals may become images of several equal rows."""
    if tiles.ndim == len(image) + 1:
        tiles = tiles[:, :, None]
    for axis, extent in enumerate(image, 2):
        tiles = tiles.take(np.arange(extent) * tiles.shape[axis] // extent, axis=axis)
    return tiles
