"""Images and ground truth from NumPy files, ``.npy`` and ``.npz``."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.dataset import Progress
from hpcpar.errors import InputError
from hpcpar.files import reason

#: Most color channels of an image: a last axis up to this length, after longer ones, looks like
#: channels.
COLORS = 4
#: Names of arrays in .npz files, with or without the name of a part before or after them.
IMAGES, TRUTHS = ("images", "x", "data"), ("labels", "targets", "masks", "y")
#: Names of held-out parts; the first one in a file counts.
HELD_OUT = ("val", "valid", "test")


def from_numpy(path: str, images: str, truth: str = "", options: ArrayOptions | None = None, *,
               channels_last: bool | None = None, progress: Progress | None = None) -> None:
    """Write a data file from two .npy files, or from one .npz file, which is read into memory.

    Parameters
    ----------
    images : str
        Path of an array [N, C, H, W], [N, C, D, H, W], or [N, H, W] with one channel. Readers
        normalize each channel of integer images; floating-point images become float32 and are not
        normalized. Or path of a .npz file with images, ground truth, and perhaps a held-out part.
    truth : str
        Path of integer labels [N], or of floating-point targets [N, outputs] or [N]; per pixel,
        labels [N, H, W] or targets [N, outputs, H, W]. Empty for a .npz file.
    channels_last : bool, optional
        Whether the array is [N, H, W, C] or [N, D, H, W, C]; the file stores channels first. By
        default, an array that looks like that is an error.

    Raises
    ------
    InputError
        A file cannot be read or written, or its contents do not fit.
    """
    options = options or ArrayOptions()
    if zipfile.is_zipfile(images):
        if truth:
            raise InputError(f"{images} itself holds the labels or targets; leave out {truth}")
        arrays = _archived(images)
    elif truth:
        arrays = [((images, _mapped(images)), (truth, _mapped(truth)))]
    else:
        _mapped(images)
        raise InputError(f"{images} holds only images; give the .npy file of their labels, too")
    parts = []
    for (x, pixels), (y, known) in arrays:
        made = Images(_channels_first(x, pixels, channels_last), x)
        parts.append((made, Truth(known, y, made, options)))
    sources = [images, truth] if truth else [name for (name, _), _ in arrays]
    names = ", ".join(map(os.path.basename, sources))
    write_arrays(path, parts, f"NumPy files {names}", options, progress)


def _archived(path: str) -> list[Any]:
    """(name, array) of images and ground truth, for the training part and a held-out part."""
    with _reading(path), np.load(path, allow_pickle=False) as arrays:
        held = next((part for part in HELD_OUT if _keys(arrays, part)), "train")
        train = _keys(arrays, "") or _keys(arrays, "train")
        if not train:
            raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'}, without clear names "
                             "for images and labels; save them with "
                             "numpy.savez(FILE, images=..., labels=...)")
        for part in HELD_OUT:
            named = [name for name in arrays if part in name.lower().split("_")]
            if named and not _keys(arrays, part):
                raise InputError(f"{path} holds {', '.join(named)}: the held-out part '{part}' "
                                 "needs images and labels, one array of each")
        parts = {"": train, "held-out part ": _keys(arrays, held)}
        return [[(f"{path}: {part}'{key}'", arrays[key]) for key in keys]
                for part, keys in parts.items() if not part or held in HELD_OUT]


def _keys(names: Iterable[str], part: str) -> list[str]:
    """Names of a part's images and ground truth; none if they are missing or ambiguous."""
    matches = []
    for kinds in IMAGES, TRUTHS:
        keys = {key.strip("_") for kind in kinds for key in (f"{part}_{kind}", f"{kind}_{part}")}
        matches.append([name for name in names if name.lower() in keys])
    images, truths = matches
    return [*images, *truths] if len(images) == len(truths) == 1 else []


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns faults of a NumPy file into one line."""
    try:
        yield
    except InputError:
        raise
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}; give a .npy or .npz file") from err
    except Exception as err:  # NumPy parses the header as Python, with all kinds of errors
        raise InputError(f"{path} is not a complete NumPy file of numbers ({reason(err)}); write "
                         "it again with numpy.save or numpy.savez") from err


def _mapped(path: str) -> NDArray[Any]:
    """A memory-mapped .npy file."""
    with _reading(path):
        if zipfile.is_zipfile(path):
            raise InputError(f"{path} is a .npz file; give one such file, with images and labels")
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _channels_first(name: str, pixels: NDArray[Any], last: bool | None) -> NDArray[Any]:
    """Images [N, C, H, W] or volumes [N, C, D, H, W]."""
    if pixels.ndim == 3 and not last:
        pixels = pixels[:, None]
    if pixels.ndim not in (4, 5):
        raise InputError(f"{name} holds {pixels.dtype} of shape {pixels.shape}; give images [N, C, "
                         "H, W], [N, H, W] or volumes [N, C, D, H, W]")
    if last is None and pixels.shape[-1] <= COLORS < min(pixels.shape[1:-1]):
        raise InputError(f"{name} holds {pixels.shape}, which looks like channels last; store its "
                         f"{pixels.shape[-1]} channels first with --channels-last, or keep its "
                         f"{pixels.shape[1]} channels with --no-channels-last")
    return np.moveaxis(pixels, -1, 1) if last else pixels
