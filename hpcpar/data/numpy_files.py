"""Data files from NumPy files, read piece by piece."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.dataset import BLOCK_BYTES, Part, Progress, create, held_out, reason, replacing
from hpcpar.errors import InputError


def from_numpy(path: str, images: str, truth: str, test_fraction: float = 0.0, *, classes: int | None = None,
               progress: Progress | None = None) -> None:
    """Write a data file from two .npy files.

    Parameters
    ----------
    images : str
        File of [N, C, H, W] or [N, C, D, H, W] numbers, or [N, H, W] of one channel. Those of uint8
        are normalised per channel by a reader; floating-point images become float32 and are taken
        as they are.
    truth : str
        File of labels, whole numbers [N], or of targets, floating-point numbers [N, outputs] or
        [N].
    test_fraction : float
        Part of every class (with targets, of all samples) to hold out.
    classes : int, optional
        Number of classes; the largest label plus one by default. Targets have none.
    """
    pixels = _images(images)
    known = _truth(truth, len(pixels))
    outputs = known.shape[1] if known.ndim == 2 else 0
    if outputs and classes is not None:
        raise InputError(f"{truth} holds targets, which have no classes; leave out --classes, or give labels (whole numbers)")
    if not outputs:
        classes = _classes(truth, known, classes)
    if not 0 <= test_fraction < 1:
        raise InputError(
            f"held-out fraction {test_fraction}: give a number of at least 0 and below 1")
    test = held_out(np.zeros(len(known), np.int64) if outputs else known, test_fraction)
    if test.all():
        raise InputError(f"held-out fraction {test_fraction} leaves no image of {images} to train with; give a smaller one")
    dtype = "u1" if pixels.dtype == np.uint8 else "f4"
    shape = pixels.shape[1:]
    brightness, block = _Brightness.of(shape[0]), max(1,
                                                      BLOCK_BYTES
                                                      // (math.prod(shape) * pixels.itemsize))
    with replacing(path, "data file") as f:
        parts = [_Writing(create(f, prefix, int(chosen.sum()), shape, dtype, outputs), chosen)
                 for prefix, chosen in (("", ~test), ("test_", test)) if chosen.any()]
        for part in parts:
            part.made.truth[...] = known[part.chosen]
        for start in range(0, len(known), block):
            piece = np.asarray(pixels[start : start + block], dtype)
            for part in parts:
                part.write(piece, start)
            if dtype == "u1":
                brightness.add(piece[~test[start : start + block]])
            if progress:
                progress(min(len(known), start + block), len(known))
        mean, scale = brightness.normalisation()
        f.attrs.update(source=f"NumPy files {os.path.basename(images)}, {os.path.basename(truth)}",
                       mean=mean, scale=scale)
        if not outputs:
            f.attrs["classes"] = classes


def _mapped(path: str) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}; give a .npy file") from err
    except (ValueError, EOFError) as err:
        fault = str(err).splitlines()[0]
        raise InputError(f"{path} is not a whole .npy file of numbers ({fault}); write it again with numpy.save") from err


def _images(path: str) -> NDArray[Any]:
    """Images or volumes with their channels."""
    pixels = _mapped(path)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim not in (4, 5) or min(pixels.shape) < 1 or not (pixels.dtype == np.uint8 or pixels.dtype.kind == "f"):
        raise InputError(f"{path} holds {pixels.dtype} of shape {pixels.shape}; give images [N, C, H, W] (volumes [N, C, D, H, W]) "
                         "of uint8 or floating point")
    return pixels


def _truth(path: str, count: int) -> NDArray[Any]:
    """Labels [N] int64 or targets [N, outputs] float32."""
    found = _mapped(path)
    if found.dtype.kind == "f" and found.ndim in (1, 2) and len(found) == count and found.size:
        targets = np.asarray(found, np.float32).reshape(count, -1)
        if not np.isfinite(targets).all():
            raise InputError(f"{path} holds targets that are no finite float32 numbers; mend or leave out those samples")
        return targets
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"{path} holds {found.dtype} of shape {found.shape}; give {count} whole numbers, one per image (labels), or "
                         f"floating-point numbers [{count}, outputs] (targets)")
    return np.asarray(found, np.int64)


def _classes(path: str, labels: NDArray[Any], classes: int | None) -> int:
    """The number of classes, checked."""
    classes = int(labels.max()) + 1 if classes is None else classes
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"{path} holds labels from {labels.min()} to {labels.max()}; {classes} classes are numbered 0 to {classes - 1}")
    return classes


@dataclass
class _Writing:
    """A part of the file that is being filled: the samples `chosen` of all."""

    made: Part
    chosen: NDArray[np.bool_]
    at: int = 0

    def write(self, piece: NDArray[Any], start: int) -> None:
        """Take its samples from a piece that begins at sample `start`."""
        own = piece[self.chosen[start : start + len(piece)]]
        self.made.images[self.at : self.at + len(own)] = own
        self.at += len(own)


@dataclass
class _Brightness:
    """Exact sums of the pixels of every channel, to normalise by; without any, pixels stay as they
    are.
    """

    sums: NDArray[np.int64]
    squares: NDArray[np.int64]
    count: int = 0

    @classmethod
    def of(cls, channels: int) -> _Brightness:
        return cls(np.zeros(channels, np.int64), np.zeros(channels, np.int64))

    def add(self, pixels: NDArray[np.uint8]) -> None:
        flat = pixels.reshape(*pixels.shape[:2], -1)
        self.sums += flat.sum((0, 2), dtype=np.int64)
        self.squares += np.einsum("nci,nci->c", flat, flat, dtype=np.int64, casting="unsafe")
        self.count += len(flat) * flat.shape[2]

    def normalisation(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mean and scale of every channel."""
        if not self.count:
            return np.zeros(len(self.sums)), np.ones(len(self.sums))
        mean = self.sums / self.count
        spread = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0))
        return mean, 1 / np.maximum(spread, 1.0)  # a constant channel stays finite
