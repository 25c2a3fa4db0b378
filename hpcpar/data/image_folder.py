"""Conversion of an image folder, with one folder per class, to a data file, block by block."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
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
from hpcpar.io.files import reason, require_regular
from hpcpar.io.hdf5 import replacing
from hpcpar.io.read_limit import MOST_BYTES

#: Suffixes of image files; other files in the folders are ignored.
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".pgm", ".pbm", ".bmp", ".tif",
            ".tiff", ".webp", ".gif", ".tga", ".avif", ".heic")
#: Formats by their names in Pillow.
FORMATS = ("JPEG", "MPO", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF", "TGA", "AVIF", "HEIF")
#: Memory for a pixel while an image is decoded, turned and converted.
PIXEL_BYTES = 9
#: EXIF's tag for how the camera was held.
_ORIENTATION = 0x0112
#: Names of folders that hold images and their masks, not classes.
IMAGES = ("images", "image", "imgs", "img", "jpegimages")
MASKS = ("masks", "mask", "labels", "label", "annotations", "segmentations", "gt")
#: Pillow's modes by number of channels.
MODES = {1: "L", 3: "RGB"}
#: Paths of images and their labels.
ImageFiles = list[tuple[str, int]]


def from_images(path: str, folder: str, shape: tuple[int, ...] = (3, 256, 256),
                test_fraction: float | None = None, *, skip_damaged: bool = False,
                progress: Progress | None = None) -> list[str]:
    """Write a data file from ``folder/class/image``, or from ``folder/train`` and ``folder/val``.

    Labels are positions in the sorted class names, which the file stores as ``class_names``.
    Readers normalize each channel.

    Parameters
    ----------
    shape : tuple of int
        (C, H, W) of the stored images; C is 3 (RGB) or 1 (gray).
    test_fraction : float, optional
        Fraction of each class to hold out if the folder has no test split (default 0.2).
    skip_damaged : bool
        Whether to skip unreadable images.

    Returns
    -------
    list of str
        The faults of skipped images, one line each.

    Raises
    ------
    InputError
        Pillow is missing, the folder has another layout, an image cannot be read, or the file
        cannot be written.
    """
    require_pillow(shape)
    names, splits = _splits(folder, test_fraction)
    total, tried, skipped = sum(map(len, splits.values())), 0, list[str]()
    require_room(path, total, shape, 1)
    block = max(1, BLOCK_BYTES // math.prod(shape))
    room = Room()
    with (warnings.catch_warnings(), replacing(path, "data file") as f,
          ThreadPoolExecutor(len(os.sched_getaffinity(0)), "hpcpar-images") as pool):
        warnings.simplefilter("ignore")  # Pillow warns about images that it reads nevertheless
        for prefix, files in splits.items():
            split, done = create_split(f, prefix, len(files), shape, "u1", grows=True), 0
            statistics = ChannelStatistics(shape[0])
            for start in range(0, len(files), block):
                batch = files[start : start + block]
                read = list(pool.map(lambda file: decoded(file[0], shape, room), batch))
                faults = [pixels for pixels in read if isinstance(pixels, InputError)]
                if faults and not skip_damaged:
                    raise faults[0]
                skipped += map(str, faults)
                valid = [(pixels, label) for pixels, (_, label) in zip(read, batch, strict=True)
                         if not isinstance(pixels, InputError)]
                for i, (pixels, label) in enumerate(valid, done):
                    split.images[i], split.truth[i] = pixels, label
                    statistics.add(pixels[None])
                done, tried = done + len(valid), tried + len(read)
                if progress:
                    progress(tried, total)
            split.images.resize(done, 0)
            split.truth.resize(done, 0)
            if not prefix and not done:
                raise InputError(f"no image of {folder} can be read; {skipped[0]}")
            if not prefix:
                f.attrs.update(statistics.mean_and_scale())
        f["class_names"] = names
        f.attrs.update(source=f"images of {os.path.basename(os.path.abspath(folder))}",
                       classes=len(names))
    return skipped


def require_pillow(shape: tuple[int, ...]) -> None:
    """Checks that images of this shape can be made.

    Raises
    ------
    InputError
        Pillow is missing, or images are neither in color nor gray.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as err:
        raise InputError(f"images need Pillow ({err}); install it with: pip install "
                         "'hpcpar[images]'") from err
    if len(shape) != 3 or shape[0] not in MODES:
        raise InputError(f"images {'x'.join(map(str, shape))}: give 3xHxW (color) or 1xHxW (gray)")


def _splits(folder: str, test_fraction: float | None) -> tuple[list[str], dict[str, ImageFiles]]:
    """Class names, and the image files of each split by its prefix in the data file."""
    root, held = Path(folder), None
    if _folders(root / "train"):
        held = next((root / name for name in ("val", "test") if _folders(root / name)), None)
        root /= "train"
    names = _folders(root)
    _refuse_masks(root, names)
    if not names:
        raise InputError(f"{folder} has no folders; put the images of each class in their own, "
                         "then run: hpcpar data images FILE.h5 FOLDER")
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


def _refuse_masks(root: Path, names: list[str]) -> None:
    """Refuses folders of images and of masks, which look like two classes."""
    masks = [name for name in names if name.lower() in MASKS]
    images = [name for name in names if name.lower() in IMAGES]
    if len(names) == 2 and masks and images:
        raise InputError(f"{root} has folders of images and masks, not of classes; run: hpcpar "
                         f"data masks FILE.h5 {root / images[0]} {root / masks[0]}")


def _folders(root: Path) -> list[str]:
    """Sorted names of the folders in a folder; none if it is missing."""
    return sorted(p.name for p in root.glob("*/") if p.is_dir() and p.name[0] != ".")


def _files(root: Path, names: list[str]) -> ImageFiles:
    """Image files in the class folders, in sorted order."""
    return [(path, label) for label, name in enumerate(names) for path in sorted(
        os.path.join(place, file) for place, files in _walk(root / name)
        for file in files if file.lower().endswith(SUFFIXES))]


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Folders below a folder and their files; it follows links and visits each folder once."""
    visited: set[str] = set()
    for place, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:
            folders.clear()
        else:
            visited.add(real)
            yield place, files


def decoded(path: str, shape: tuple[int, ...], room: Room) -> NDArray[np.uint8] | InputError:
    """The pixels to store (C, H, W), or the image's fault.

    The image is rotated by its EXIF data, cropped at the center to the proportions of (H, W), and
    scaled (bilinear) to it. Transparency and all frames but the first are dropped.
    """
    from PIL import Image

    try:
        require_regular(path)
        with Image.open(path, formats=formats()) as opened:
            require_size(opened)
            with room.taken(math.prod(opened.size) * PIXEL_BYTES):
                return _scaled(opened, shape)
    except (Exception, MemoryError) as err:  # decoders raise all kinds on damaged files
        return InputError(f"{path} cannot be read as an image ({reason(err)}); fix or remove it, "
                          "or skip such images with --skip-damaged")


def require_size(opened: Any) -> None:
    """Refuses an open image that is too large (ValueError)."""
    pixels = math.prod(opened.size)
    if pixels * PIXEL_BYTES > MOST_BYTES:
        raise ValueError(f"it has {pixels:,} pixels; images of at most "
                         f"{MOST_BYTES // PIXEL_BYTES:,} are read")


def turned_size(opened: Any) -> tuple[int, int]:
    """Width and height of an open image, turned as its EXIF data say."""
    width, height = opened.size
    return (height, width) if opened.getexif().get(_ORIENTATION, 1) >= 5 else (width, height)


def formats() -> list[str]:
    """Formats of Pillow that are read: others, such as EPS, start programs."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _scaled(opened: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels of an open image."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    # Pillow cuts 16-bit colors to 8 bits; its decoder arguments reveal that
    if opened.mode[0] in "IF" or any(
            ";16" in str(args) or (codec[:3] == "ppm" and args[1:] > (255,))
            for codec, _, _, args in opened.tile if args != "1;I"):
        raise ValueError(f"its pixels have more than 8 bits, {opened.mode}; hpcpar data numpy "
                         "keeps 16 bits")
    # copies would add to the memory of large images
    turned = opened.getexif().get(_ORIENTATION, 1) != 1
    image = ImageOps.exif_transpose(opened) if turned else opened
    image.load()
    if image.mode == "P":  # a palette may have transparent colors
        image = image.convert("RGBA")
    if image.mode != MODES[channels]:
        image = image.convert(MODES[channels])
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR,
                                     center(image.size, (width, height))))
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def center(image: tuple[int, int], kept: tuple[int, int]) -> Any:
    """The central box (left, top, right, bottom) of an image (width, height) that has the
    proportions of `kept`. Only this part is scaled: the whole of a narrow image would become very
    large.
    """
    (image_width, image_height), (width, height) = image, kept
    wide = image_width * height >= image_height * width
    whole = ((image_width * height // image_height, height) if wide
             else (width, image_height * width // image_width))
    left, top = (whole[0] - width) // 2, (whole[1] - height) // 2
    part = (left, top, left + width, top + height)
    return tuple(end * size / scaled for end, size, scaled in zip(
        part, image * 2, whole * 2, strict=True))


class Room:
    """Memory for the images that threads decode at the same time."""

    def __init__(self, total_bytes: int = MOST_BYTES) -> None:
        self._free_bytes, self._changed = total_bytes, Condition()

    @contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Waits until that much is free, and takes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._free_bytes >= size_bytes)
            self._free_bytes -= size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += size_bytes
                self._changed.notify_all()
