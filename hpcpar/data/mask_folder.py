"""Conversion of a folder of images and a folder of their masks to a data file."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data import image_folder
from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.dataset import Progress
from hpcpar.data.file_samples import FileSamples
from hpcpar.data.part_names import part_folders
from hpcpar.errors import InputError
from hpcpar.io.files import reason, require_regular

#: Ends of the names of masks, which their images' names lack.
_ENDS = re.compile("(_masks?|_labels?|_gt|_seg|_segmentation)$")
#: Pillow's modes of masks: labels, palettes of labels, 0 and 1, and 16 or 32 bits.
_MODES = ("L", "P", "1", "I", "I;16", "I;16B")


def from_masks(path: str, folder: str, masks: str, shape: tuple[int, ...] = (3, 256, 256),
               options: ArrayOptions | None = None, *, progress: Progress | None = None) -> None:
    """Write a data file from images and the masks of the same names, which label each pixel.

    A mask's name may end in ``_mask``. If both folders have ``train`` and ``val`` (or ``valid`` or
    ``test``), the latter is the held-out part. Image and mask are scaled and cropped alike, the
    mask by its nearest pixels.

    Parameters
    ----------
    shape : tuple of int
        (C, H, W) of the stored images; C is 3 (RGB) or 1 (gray).

    Raises
    ------
    InputError
        Pillow is missing, an image has no mask or cannot be read, or the labels do not fit.
    """
    options = options or ArrayOptions()
    image_folder.require_pillow(shape)
    room = image_folder.Room()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "hpcpar-images") as pool:
        parts = []
        for part in part_folders(Path(folder), Path(masks)):
            pairs = _pairs(Path(folder, part), Path(masks, part))
            x = FileSamples(pairs, shape, np.dtype("u1"),
                            lambda pair: image_folder.decoded(pair[0], shape, room), pool.map)
            y = FileSamples(pairs, shape[1:], np.dtype("i4"),
                            lambda pair: _mask(*pair, shape[1:]), pool.map)
            images = Images(x, str(Path(folder, part)))
            parts.append((images, Truth(y, str(Path(masks, part)), images, options)))
        write_arrays(path, parts, f"images of {Path(folder).name} with masks", options, progress)


def _pairs(images: Path, masks: Path) -> list[tuple[str, str]]:
    """Paths of images and their masks, in the order of the images' names."""
    of_name: dict[str, str] = {}
    for file in _files(masks):
        name = _ENDS.sub("", str(file.relative_to(masks).with_suffix("")))
        if name in of_name:
            raise InputError(f"{of_name[name]} and {file} are masks of one image; remove one")
        of_name[name] = str(file)
    pairs = []
    for file in _files(images):
        name = str(file.relative_to(images).with_suffix(""))
        if name not in of_name:
            raise InputError(f"{file} has no mask '{name}' in {masks}; add it, or remove the image")
        pairs.append((str(file), of_name.pop(name)))
    if not pairs:
        raise InputError(f"{images} has no images ({', '.join(image_folder.SUFFIXES)})")
    if of_name:
        raise InputError(f"{next(iter(of_name.values()))} is a mask without an image in {images}; "
                         "add the image, or remove the mask")
    return pairs


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*")
                  if p.suffix.lower() in image_folder.SUFFIXES and p.is_file())


def _mask(image: str, mask: str, kept: tuple[int, ...]) -> NDArray[Any] | InputError:
    """The labels (H, W) of a mask, scaled and cropped as its image."""
    from PIL import Image

    height, width = kept
    try:
        require_regular(mask)
        formats = image_folder.formats()
        with Image.open(image, formats=formats) as opened:
            size = image_folder.turned_size(opened)
        with Image.open(mask, formats=formats) as opened:
            if opened.mode not in _MODES:
                raise ValueError(f"its pixels are colors, {opened.mode}; save the labels' numbers")
            if opened.size != size:
                raise ValueError(f"it has {opened.size[0]}x{opened.size[1]} pixels, its image "
                                 f"{size[0]}x{size[1]}")
            image_folder.require_size(opened)
            labels = Image.fromarray(np.asarray(opened).astype(np.int32))
            return np.asarray(labels.resize((width, height), Image.Resampling.NEAREST,
                                            image_folder.center(size, (width, height))))
    except (Exception, MemoryError) as err:  # decoders raise all kinds on damaged files
        return InputError(f"{mask} cannot be read as a mask ({reason(err)}); fix it, or remove it "
                          "and its image")
