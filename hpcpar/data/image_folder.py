"""Conversion of a folder of images, one folder for each class, to a data file, block by block."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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

#: File names that count as images; others in the folders are passed over.
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".pgm", ".pbm", ".bmp", ".tif",
            ".tiff", ".webp", ".gif", ".tga", ".avif", ".heic")
#: Pillow's modes by number of channels.
MODES = {1: "L", 3: "RGB"}
#: Paths of images and their labels.
ImageFiles = list[tuple[str, int]]


def from_images(path: str, folder: str, shape: tuple[int, ...] = (3, 256, 256),
                test_fraction: float | None = None, *, skip_damaged: bool = False,
                progress: Progress | None = None) -> list[str]:
    """Write a data file from ``folder/class/image``, or from ``folder/train`` and ``folder/val``.

    Labels are positions in the sorted names of the classes, which the file keeps as
    ``class_names``. Readers normalise per channel.

    Parameters
    ----------
    shape : tuple of int
        (C, H, W) of the stored images; C is 3 (RGB) or 1 (grey).
    test_fraction : float, optional
        Fraction of each class in the test split, where the folder has none (default 0.2).
    skip_damaged : bool
        Leave out images that cannot be read.

    Returns
    -------
    list of str
        The faults of the images that were left out, a line each.

    Raises
    ------
    InputError
        Pillow is missing, the folder has another layout, an image cannot be read, or the file
        cannot be written.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as err:
        raise InputError(f"images need Pillow ({err}); install it with: pip install "
                         "'hpcpar[images]'") from err
    if len(shape) != 3 or shape[0] not in MODES:
        raise InputError(f"images {'x'.join(map(str, shape))}: give 3xHxW (colour) or 1xHxW (grey)")
    names, splits = _splits(folder, test_fraction)
    total, tried, skipped = sum(map(len, splits.values())), 0, list[str]()
    require_room(path, total, shape, 1)
    block = max(1, BLOCK_BYTES // math.prod(shape))
    with (replacing(path, "data file") as f,
          ThreadPoolExecutor(len(os.sched_getaffinity(0)), "hpcpar-images") as pool):
        for prefix, files in splits.items():
            split, done = create_split(f, prefix, len(files), shape, "u1", grows=True), 0
            statistics = ChannelStatistics(shape[0])
            for start in range(0, len(files), block):
                some = files[start : start + block]
                read = list(pool.map(lambda file: _pixels(file[0], shape), some))
                faults = [pixels for pixels in read if isinstance(pixels, InputError)]
                if faults and not skip_damaged:
                    raise faults[0]
                skipped += map(str, faults)
                whole = [(pixels, label) for pixels, (_, label) in zip(read, some, strict=True)
                         if not isinstance(pixels, InputError)]
                for i, (pixels, label) in enumerate(whole, done):
                    split.images[i], split.truth[i] = pixels, label
                    statistics.add(pixels[None])
                done, tried = done + len(whole), tried + len(read)
                if progress:
                    progress(tried, total)
            split.images.resize(done, 0)
            split.truth.resize(done, 0)
            if not prefix and not done:
                raise InputError(f"no image of {folder} can be read; {skipped[0]}")
            if not prefix:
                f.attrs.update(statistics.normalisation())
        f["class_names"] = names
        f.attrs.update(source=f"images of {os.path.basename(os.path.abspath(folder))}",
                       classes=len(names))
    return skipped


def _splits(folder: str, test_fraction: float | None) -> tuple[list[str], dict[str, ImageFiles]]:
    """Names of the classes, and the files of each split by its prefix in the data file."""
    root, held = Path(folder), None
    if _folders(root / "train"):
        held = next((root / name for name in ("val", "test") if _folders(root / name)), None)
        root /= "train"
    names = _folders(root)
    if not names:
        raise InputError(f"{folder} has no folders of images, one for each class; write: hpcpar "
                         "data images FILE.h5 FOLDER")
    train = _files(root, names)
    labels = np.array([label for _, label in train], np.int64)
    empty = sorted({*range(len(names))} - {*labels.tolist()})
    if empty:
        raise InputError(f"{root / names[empty[0]]} has no images ({', '.join(SUFFIXES)}); add "
                         "some, or remove that folder")
    if held is None:
        test = held_out(labels, test_fraction)
        parts = {prefix: [train[i] for i in np.flatnonzero(chosen)]
                 for prefix, chosen in (("", ~test), ("test_", test))}
        return names, {prefix: files for prefix, files in parts.items() if files}
    if test_fraction is not None:
        raise InputError(f"{held} is the held-out part; leave out --test-fraction")
    unknown = sorted({*_folders(held)} - {*names})
    if unknown:
        raise InputError(f"{held / unknown[0]} is not a class of {root}; rename or remove that "
                         "folder")
    return names, {"": train, "test_": _files(held, names)}


def _folders(root: Path) -> list[str]:
    """Sorted names of the folders in a folder; none where it is missing."""
    return sorted(p.name for p in root.glob("*/") if p.is_dir() and p.name[0] != ".")


def _files(root: Path, names: list[str]) -> ImageFiles:
    """The images in the folders of the classes, in sorted order."""
    return [(path, label) for label, name in enumerate(names) for path in sorted(
        os.path.join(place, file) for place, files in _walk(root / name)
        for file in files if file.lower().endswith(SUFFIXES))]


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Folders below a folder and their files; links are followed, each folder is met once."""
    met: set[str] = set()
    for place, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(place)
        if real in met:
            folders.clear()
        else:
            met.add(real)
            yield place, files


def _pixels(path: str, shape: tuple[int, ...]) -> NDArray[np.uint8] | InputError:
    """An image as stored (C, H, W), or what is wrong with it.

    It is turned as its EXIF data say, scaled by a bilinear filter until it just covers (H, W), and
    cut at the centre. Transparency is dropped; of several frames the first is taken.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    try:
        with Image.open(path) as opened:
            # Pillow cuts colours of 16 bits to 8; how it reads the file tells
            if opened.mode[0] in "IF" or any(
                    ";16" in str(args) or (codec[:3] == "ppm" and args[1:] > (255,))
                    for codec, _, _, args in opened.tile if args != "1;I"):
                raise ValueError(f"its pixels have more than 8 bits, {opened.mode}; hpcpar data "
                                 "numpy keeps those of 16")
            image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as err:  # readers of damaged files raise exceptions of all kinds
        return InputError(f"{path} cannot be read as an image ({reason(err)}); mend or remove it, "
                          "or leave such out with --skip-damaged")
    if image.mode == "P":  # a palette may hold transparent colours
        image = image.convert("RGBA")
    wide = image.width * height >= image.height * width
    size = ((image.width * height // image.height, height) if wide
            else (width, image.height * width // image.width))
    image = image.convert(MODES[channels]).resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    pixels = np.asarray(image)[top : top + height, left : left + width]
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)
