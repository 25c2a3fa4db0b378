"""Making data files: HDF5 with images and labels, from bundled digits, NumPy files or random numbers.

==================================  =================================================================================
``images`` [N, C, H, W]             uint8 or float32
``labels`` [N]                      int64, 0 <= label < classes
``test_images``, ``test_labels``    the held-out part, where there is one
attributes ``source, classes``      where the data come from; number of classes
attributes ``mean, scale``          one number or one per channel: a reader gives (x - mean) * scale
==================================  =================================================================================
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError

#: Called with (samples done, samples in all) while a file is written.
Progress = Callable[[int, int], None]

#: Bytes of images that are in memory at once while a file is made.
_BLOCK_BYTES = 16 << 20
#: Seed of the choice and order of samples that must be the same wherever a file is made.
_SPLIT_SEED = 20171
#: Synthetic pixels: uniform noise below the first number plus a pattern of the class below the second.
_NOISE, _PATTERN = 160, 96


def reason(err: OSError) -> str:
    """What went wrong, in a few words: HDF5 buries it in a line of its own state."""
    buried = re.search(r"error message = '([^']*)'", str(err))
    if buried:
        return buried[1]
    return err.strerror or str(err).splitlines()[0]


def open_hdf5(path: str, what: str, remedy: str) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises
    ------
    InputError
        Missing, truncated, unreadable or not HDF5; the message ends with `remedy`.
    """
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        fault = "does not exist"
    except OSError as err:
        if "truncated file" in str(err):
            fault = "is truncated (its end is missing)"
        elif "signature not found" in str(err):
            fault = "is not an HDF5 file"
        else:
            fault = f"cannot be read ({reason(err)})"
    raise InputError(f"{what} {path} {fault}; {remedy}")


@contextmanager
def replacing(path: str, what: str) -> Iterator[h5py.File]:
    """An HDF5 file to write that takes the place of `path` when all went well, and leaves nothing behind otherwise."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with h5py.File(temporary, "w") as f:
            yield f
        os.replace(temporary, path)
    except OSError as err:
        raise InputError(f"cannot write {what} {path}: {reason(err)}; choose another place or make room") from err
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _create(f: h5py.File, prefix: str, count: int, shape: tuple[int, ...], dtype: Any) -> tuple[h5py.Dataset, h5py.Dataset]:
    """The two datasets of one part, in chunks of one sample and about 32 rows that divide the rows evenly."""
    c, h, w = shape
    rows = -(-h // -(-h // 32))
    images = f.create_dataset(f"{prefix}images", (count, c, h, w), dtype, chunks=(1, c, rows, w) if count else None)
    return images, f.create_dataset(f"{prefix}labels", (count,), "i8")


def _held_out(labels: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Marks the same fraction of every class, chosen by a fixed seed."""
    out = np.zeros(len(labels), bool)
    rng = np.random.default_rng(_SPLIT_SEED)
    for label in np.unique(labels):
        own = rng.permutation(np.flatnonzero(labels == label))
        out[own[: round(len(own) * fraction)]] = True
    return out


def digits(path: str) -> None:
    """Write scikit-learn's bundled handwritten digits: 1,797 real images of 8 x 8, a fifth of every class held out.

    Raises
    ------
    InputError
        scikit-learn is missing, or the file cannot be written.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as err:
        raise InputError(f"the bundled digits need scikit-learn ({err}); install it with: pip install 'hpcpar[digits]'") from err
    bunch = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(bunch.target))
    pixels = bunch.images[order].astype(np.uint8)[:, None]
    labels = bunch.target[order].astype(np.int64)
    test = _held_out(labels, 0.2)
    with replacing(path, "data file") as f:
        for prefix, part in (("", ~test), ("test_", test)):
            images, own = _create(f, prefix, int(part.sum()), pixels.shape[1:], "u1")
            images[...], own[...] = pixels[part], labels[part]
        train = pixels[~test].astype(np.float64)
        f.attrs.update(source="scikit-learn load_digits", classes=10, mean=train.mean(), scale=1 / train.std())


def synthetic(path: str, shape: tuple[int, int, int], classes: int, samples: int, seed: int = 0, *, test_samples: int = 0,
              progress: Progress | None = None) -> None:
    """Write random uint8 images that can be learnt: noise, plus a coarse pattern (8 x 8 tiles a channel) of the image's class.

    Parameters
    ----------
    shape : tuple of int
        C, H, W.
    samples, test_samples : int
        Images to train with, and to hold out.
    """
    if len(shape) != 3 or min(shape) < 1 or classes < 1 or samples < 1 or test_samples < 0 or seed < 0:
        raise InputError(f"synthetic data of {samples} + {test_samples} images {shape} in {classes} classes, seed {seed}: "
                         "give positive numbers")
    c, h, w = shape
    tiles = np.random.default_rng([seed, 0]).integers(0, _PATTERN, (classes, c, 8, 8), dtype=np.uint8)
    rows, columns = np.arange(h) * 8 // h, np.arange(w) * 8 // w
    total, done, block = samples + test_samples, 0, max(1, _BLOCK_BYTES // math.prod(shape))
    with replacing(path, "data file") as f:
        for part, (prefix, count) in enumerate((("", samples), ("test_", test_samples))):
            if not count:
                continue
            rng = np.random.default_rng([seed, 1 + part])
            images, labels = _create(f, prefix, count, shape, "u1")
            labels[...] = own = rng.integers(0, classes, count)
            for start in range(0, count, block):
                stop = min(count, start + block)
                pixels = rng.integers(0, _NOISE, (stop - start, *shape), dtype=np.uint8)
                pixels += tiles[own[start:stop]][:, :, rows][:, :, :, columns]
                images[start:stop] = pixels
                done += stop - start
                if progress:
                    progress(done, total)
        spread = math.sqrt((_NOISE**2 + _PATTERN**2) / 12)
        f.attrs.update(source=f"synthetic, seed {seed}", classes=classes, mean=(_NOISE + _PATTERN) / 2 - 1, scale=1 / spread)


def _mapped(path: str) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}; give a .npy file") from err
    except (ValueError, EOFError) as err:
        fault = str(err).splitlines()[0]
        raise InputError(f"{path} is not a whole .npy file of numbers ({fault}); write it again with numpy.save") from err


def from_numpy(path: str, images: str, labels: str, test_fraction: float = 0.0, *, classes: int | None = None,
               progress: Progress | None = None) -> None:
    """Write a data file from two .npy files, reading them piece by piece.

    Parameters
    ----------
    images, labels : str
        Files of [N, C, H, W] or [N, H, W] (one channel) numbers, and of [N] whole numbers. Images of uint8 are normalised per
        channel by a reader; floating-point images become float32 and are taken as they are.
    test_fraction : float
        Part of every class to hold out.
    classes : int, optional
        Number of classes; the largest label plus one by default.
    """
    pixels, marks = _mapped(images), _mapped(labels)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4 or min(pixels.shape) < 1 or not (pixels.dtype == np.uint8 or pixels.dtype.kind == "f"):
        raise InputError(f"{images} holds {pixels.dtype} of shape {pixels.shape}; give images [N, C, H, W] of uint8 or floating point")
    if marks.shape != pixels.shape[:1] or marks.dtype.kind not in "iu":
        raise InputError(f"{labels} holds {marks.dtype} of shape {marks.shape}; give {len(pixels)} whole numbers, one per image")
    own = np.asarray(marks, np.int64)
    classes = int(own.max()) + 1 if classes is None else classes
    if own.min() < 0 or own.max() >= classes:
        raise InputError(f"{labels} holds labels from {own.min()} to {own.max()}; {classes} classes are numbered 0 to {classes - 1}")
    if not 0 <= test_fraction < 1:
        raise InputError(f"held-out fraction {test_fraction}: give a number of at least 0 and below 1")
    test, shape = _held_out(own, test_fraction), pixels.shape[1:]
    if test.all():
        raise InputError(f"held-out fraction {test_fraction} leaves no image of {images} to train with; give a smaller one")
    dtype = "u1" if pixels.dtype == np.uint8 else "f4"
    sums, squares, block = np.zeros(shape[0]), np.zeros(shape[0]), max(1, _BLOCK_BYTES // (math.prod(shape) * pixels.itemsize))
    with replacing(path, "data file") as f:
        parts = [("", ~test), ("test_", test)] if test.any() else [("", ~test)]
        written = []
        for prefix, part in parts:
            data, mark = _create(f, prefix, int(part.sum()), shape, dtype)
            mark[...] = own[part]
            written.append([data, part, 0])
        for start in range(0, len(own), block):
            piece = np.asarray(pixels[start : start + block], dtype)
            for entry in written:
                data, part, at = entry
                chosen = piece[part[start : start + block]]
                data[at : at + len(chosen)] = chosen
                entry[2] = at + len(chosen)
            if dtype == "u1":
                x = piece[~test[start : start + block]]
                sums += x.sum((0, 2, 3), dtype=np.int64)
                squares += np.einsum("nchw,nchw->c", x, x, dtype=np.int64, casting="unsafe")
            if progress:
                progress(min(len(own), start + block), len(own))
        mean: NDArray[Any] = np.zeros(shape[0])
        scale: NDArray[Any] = np.ones(shape[0])
        if dtype == "u1":
            per_channel = int((~test).sum()) * math.prod(shape[1:])
            mean = sums / per_channel
            scale = 1 / np.maximum(np.sqrt(np.maximum(squares / per_channel - mean**2, 0)), 1.0)  # a constant channel stays finite
        source = f"NumPy files {os.path.basename(images)}, {os.path.basename(labels)}"
        f.attrs.update(source=source, classes=classes, mean=mean, scale=scale)


def info(path: str) -> dict[str, Any]:
    """What a data file holds: shapes, types, source, classes, normalisation and size (bytes)."""
    with open_hdf5(path, "data file", "make it with: hpcpar data") as f:
        out: dict[str, Any] = {"path": path, "bytes": os.path.getsize(path)}
        for name in ("images", "labels", "test_images", "test_labels"):
            if isinstance(f.get(name), h5py.Dataset):
                out[name] = {"shape": list(f[name].shape), "dtype": str(f[name].dtype)}
        if "images" not in out or "labels" not in out:
            raise InputError(f"data file {path} has no datasets 'images' and 'labels'; make it with: hpcpar data")
        for name in ("source", "classes", "mean", "scale"):
            if name in f.attrs:
                value = f.attrs[name]
                out[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        return out
