"""Conversion of NumPy files to data files, block by block."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.dataset import (
    BLOCK_BYTES,
    ChannelStatistics,
    Progress,
    create_split,
    held_out,
)
from hpcpar.data.room import require_room
from hpcpar.errors import InputError
from hpcpar.files import reason
from hpcpar.hdf5 import replacing

#: An image has at most so many colours (and transparency): a last axis that is so short, after
#: longer ones, is taken for its channels.
COLOURS = 4


def from_numpy(path: str, images: str, truth: str, test_fraction: float = 0.0, *,
               classes: int | None = None, channels_last: bool | None = None,
               progress: Progress | None = None) -> None:
    """Write a data file from two .npy files.

    Parameters
    ----------
    images : str
        Path of an array [N, C, H, W] or [N, C, D, H, W], or [N, H, W] with one channel. Readers
        normalise uint8 images per channel. Floating-point images become float32 and are not
        normalised.
    truth : str
        Path of integer labels [N], or of floating-point targets [N, outputs] or [N]; of pixels
        labels [N, H, W] or targets [N, outputs, H, W].
    test_fraction : float
        Fraction of each class (with targets, of all samples) in the test split.
    classes : int, optional
        Number of classes; by default the largest label plus one. Targets have none.
    channels_last : bool, optional
        The array is [N, H, W, C] or [N, D, H, W, C] and is stored channels first. None: it is not,
        and an array that looks so is refused.

    Raises
    ------
    InputError
        A file cannot be read or written, or its contents do not fit.
    """
    pixels = _images(images, channels_last)
    known = _truth(truth, len(pixels), pixels.shape[2:])
    outputs = known.shape[1] if known.dtype.kind == "f" else 0
    if outputs and classes is not None:
        raise InputError(f"{truth} holds targets, which have no classes; leave out --classes, or "
                         "give labels (whole numbers)")
    if not outputs:
        classes = _classes(truth, known, classes)
    test = held_out(np.zeros(len(known), np.int64) if outputs or known.ndim > 1 else known,
                    test_fraction)
    dtype = "u1" if pixels.dtype == np.uint8 else "f4"
    shape = pixels.shape[1:]
    statistics = ChannelStatistics(shape[0])
    require_room(path, len(pixels), shape, 1 if dtype == "u1" else 4)
    block = max(1, BLOCK_BYTES // (math.prod(shape) * pixels.itemsize))
    with replacing(path, "data file") as f:
        splits = []
        for prefix, chosen in ("", ~test), ("test_", test):
            if chosen.any():
                split = create_split(f, prefix, int(chosen.sum()), shape, dtype,
                                     known.shape[1:], "f4" if outputs else "i8")
                split.truth[...] = known[chosen]
                splits.append((split, chosen))
        for start in range(0, len(known), block):
            piece = np.asarray(pixels[start : start + block], dtype)
            stop = start + len(piece)
            for split, chosen in splits:
                first, last = int(chosen[:start].sum()), int(chosen[:stop].sum())
                split.images[first:last] = piece[chosen[start:stop]]
            if dtype == "u1":
                statistics.add(piece[~test[start:stop]])
            if progress:
                progress(stop, len(known))
        unchanged = {"mean": np.zeros(shape[0]), "scale": np.ones(shape[0])}
        f.attrs.update(source=f"NumPy files {os.path.basename(images)}, {os.path.basename(truth)}",
                       **(statistics.normalisation() if dtype == "u1" else unchanged))
        if not outputs:
            f.attrs["classes"] = classes


def _mapped(path: str) -> NDArray[Any]:
    """A memory-mapped .npy file."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}; give a .npy file") from err
    except Exception as err:  # the header is parsed as Python, with errors of all kinds
        fault = str(err).splitlines()[0]
        raise InputError(f"{path} is not a whole .npy file of numbers ({fault}); write it again "
                         "with numpy.save") from err


def _images(path: str, channels_last: bool | None) -> NDArray[Any]:
    """Images [N, C, H, W] or volumes [N, C, D, H, W]."""
    pixels = _mapped(path)
    if pixels.ndim == 3 and not channels_last:
        pixels = pixels[:, None]
    is_pixels = pixels.dtype == np.uint8 or pixels.dtype.kind == "f"
    if pixels.ndim not in (4, 5) or min(pixels.shape) < 1 or not is_pixels:
        raise InputError(f"{path} holds {pixels.dtype} of shape {pixels.shape}; give images [N, C, "
                         "H, W] (volumes [N, C, D, H, W]) of uint8 or floating point")
    if channels_last is None and pixels.shape[-1] <= COLOURS < min(pixels.shape[1:-1]):
        raise InputError(f"{path} holds {pixels.shape}, which looks like channels last; store its "
                         f"{pixels.shape[-1]} channels first with --channels-last, or keep its "
                         f"{pixels.shape[1]} channels with --no-channels-last")
    return np.moveaxis(pixels, -1, 1) if channels_last else pixels


def _truth(path: str, count: int, image: tuple[int, ...]) -> NDArray[Any]:
    """Labels [N] int64 or targets [N, outputs] float32; of pixels with the image's axes."""
    found = _mapped(path)
    if (found.dtype.kind == "f" and found.shape[:1] == (count,) and found.size
            and found.shape[2:] in ((), image)):
        targets = np.asarray(found, np.float32).reshape(count, -1, *found.shape[2:])
        if not np.isfinite(targets).all():
            raise InputError(f"{path} holds targets that are no finite float32 numbers; fix or "
                             "leave out those samples")
        return targets
    if found.shape not in ((count,), (count, *image)) or found.dtype.kind not in "iu":
        raise InputError(
            f"{path} holds {found.dtype} of shape {found.shape}; give {count} whole numbers, one "
            f"per image (labels), or floating-point numbers [{count}, outputs] (targets); of "
            f"pixels, with {image} after them")
    return np.asarray(found, np.int64)


def _classes(path: str, labels: NDArray[Any], classes: int | None) -> int:
    """The number of classes, checked."""
    classes = int(labels.max()) + 1 if classes is None else classes
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"{path} holds labels from {labels.min()} to {labels.max()}; {classes} "
                         f"classes are numbered 0 to {classes - 1}; fix the labels (those that do "
                         "not count need a class of their own)")
    return classes
