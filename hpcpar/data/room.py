"""Data files that are too large are refused before they are begun."""

from __future__ import annotations

import math
import os
import shutil

from hpcpar.errors import InputError
from hpcpar.network.layers.base import shape_text

#: Largest image: some of them are in memory at once.
MOST_IMAGE_BYTES = 1 << 29


def require_room(path: str, samples: int, shape: tuple[int, ...], item_bytes: int,
                 truth_bytes: int = 0) -> None:
    """Checks that images and their ground truth have room in memory and on the disk.

    Parameters
    ----------
    truth_bytes : int
        Size of what is held in memory beside the images, for all samples together.

    Raises
    ------
    InputError
        They have not.
    """
    image_bytes = math.prod(shape) * item_bytes
    if image_bytes > MOST_IMAGE_BYTES:
        raise InputError(f"images {shape_text(shape)} take {image_bytes:,} bytes each, data files "
                         f"hold images of at most {MOST_IMAGE_BYTES:,}; give smaller ones")
    folder = os.path.dirname(path) or "."
    free_disk = shutil.disk_usage(folder).free if os.path.isdir(folder) else math.inf
    free_memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for what, need, free in (("memory", truth_bytes, free_memory // 2),
                             (f"room in {folder}", samples * image_bytes, free_disk)):
        if need > free:
            raise InputError(f"{samples:,} images {shape_text(shape)} need {need:,} bytes of "
                             f"{what}, {free:,} are free; give fewer or smaller ones")
