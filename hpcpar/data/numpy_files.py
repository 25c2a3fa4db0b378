"""Images and their ground truth from NumPy's files, ``.npy`` and ``.npz``."""

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

#: An image has at most so many colours (and transparency): a last axis that is so short, after
#: longer ones, is taken for its channels.
COLOURS = 4
#: Names of arrays in .npz files, alone or with the name of a part before or after them.
IMAGES, TRUTHS = ("images", "x", "data"), ("labels", "targets", "masks", "y")
#: Names of held-out parts, of which the first counts.
HELD_OUT = ("val", "valid", "test")


def from_numpy(path: str, images: str, truth: str = "", options: ArrayOptions | None = None, *,
               channels_last: bool | None = None, progress: Progress | None = None) -> None:
    """Write a data file from two .npy files, or from one .npz file, which is read into memory.

    Parameters
    ----------
    images : str
        Path of an array [N, C, H, W] or [N, C, D, H, W], or [N, H, W] with one channel. Readers
        normalise whole numbers per channel. Floating-point images become float32 and are not
        normalised. Or the path of a .npz file that holds images, truth and perhaps a
        held-out part.
    truth : str
        Path of integer labels [N], or of floating-point targets [N, outputs] or [N]; of pixels
        labels [N, H, W] or targets [N, outputs, H, W]. Empty with a .npz file.
    channels_last : bool, optional
        The array is [N, H, W, C] or [N, D, H, W, C] and is stored channels first. None: it is not,
        and an array that looks so is refused.

    Raises
    ------
    InputError
        A file cannot be read or written, or its contents do not fit.
    """
    options = options or ArrayOptions()
    if zipfile.is_zipfile(images):
        if truth:
            raise InputError(f"{images} holds the labels or targets itself; leave out {truth}")
        arrays = _archived(images)
    elif truth:
        arrays = [((images, _mapped(images)), (truth, _mapped(truth)))]
    else:
        _mapped(images)
        raise InputError(f"{images} holds images alone; give the .npy file of their labels, too")
    parts = []
    for (x, pixels), (y, known) in arrays:
        made = Images(_channels_first(x, pixels, channels_last), x)
        parts.append((made, Truth(known, y, made, options)))
    sources = [images, truth] if truth else [name for (name, _), _ in arrays]
    names = ", ".join(map(os.path.basename, sources))
    write_arrays(path, parts, f"NumPy files {names}", options, progress)


def _archived(path: str) -> list[Any]:
    """(name, array) of images and of truth, of the training part and of one that is held out."""
    with _reading(path), np.load(path, allow_pickle=False) as found:
        held = next((each for each in HELD_OUT if _keys(found, each)), "train")
        train = _keys(found, "") or _keys(found, "train")
        if not train:
            raise InputError(f"{path} holds {', '.join(found) or 'nothing'}, which does not say "
                             "what its images and labels are; save them with "
                             "numpy.savez(FILE, images=..., labels=...)")
        for part in HELD_OUT:
            own = [name for name in found if part in name.lower().split("_")]
            if own and not _keys(found, part):
                raise InputError(f"{path} holds {', '.join(own)}: the held-out part '{part}' "
                                 "needs images and labels, one array of each")
        parts = {"": train, "held-out part ": _keys(found, held)}
        return [[(f"{path}: {part}'{key}'", found[key]) for key in keys]
                for part, keys in parts.items() if not part or held in HELD_OUT]


def _keys(names: Iterable[str], part: str) -> list[str]:
    """The names of the images and the truth of a part; none where they are not clear."""
    found = [[name for name in names if name.lower() in
              {each.strip("_") for kind in kinds for each in (f"{part}_{kind}", f"{kind}_{part}")}]
             for kinds in (IMAGES, TRUTHS)]
    return [found[0][0], found[1][0]] if [len(each) for each in found] == [1, 1] else []


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns faults of a file of NumPy into one line."""
    try:
        yield
    except InputError:
        raise
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}; give a .npy or .npz file") from err
    except Exception as err:  # the header is parsed as Python, with errors of all kinds
        raise InputError(f"{path} is not a whole file of numbers ({reason(err)}); write it again "
                         "with numpy.save or numpy.savez") from err


def _mapped(path: str) -> NDArray[Any]:
    """A memory-mapped .npy file."""
    with _reading(path):
        if zipfile.is_zipfile(path):
            raise InputError(f"{path} is a .npz file; give it alone, with images and labels in it")
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _channels_first(name: str, pixels: NDArray[Any], last: bool | None) -> NDArray[Any]:
    """Images [N, C, H, W] or volumes [N, C, D, H, W]."""
    if pixels.ndim == 3 and not last:
        pixels = pixels[:, None]
    if pixels.ndim not in (4, 5):
        raise InputError(f"{name} holds {pixels.dtype} of shape {pixels.shape}; give images [N, C, "
                         "H, W], [N, H, W] or volumes [N, C, D, H, W]")
    if last is None and pixels.shape[-1] <= COLOURS < min(pixels.shape[1:-1]):
        raise InputError(f"{name} holds {pixels.shape}, which looks like channels last; store its "
                         f"{pixels.shape[-1]} channels first with --channels-last, or keep its "
                         f"{pixels.shape[1]} channels with --no-channels-last")
    return np.moveaxis(pixels, -1, 1) if last else pixels
