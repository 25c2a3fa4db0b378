"""Check for disk space and memory before a data file is written."""

from __future__ import annotations

import math
import os
import shutil

from hpcpar.errors import InputError
from hpcpar.network.layers.base import shape_text

#: Largest image; several are in memory at once.
MOST_IMAGE_BYTES = 1 << 29


def require_room(path: str, samples: int, shape: tuple[int, ...], item_bytes: int,
                 truth_bytes: int = 0) -> None:
    """Checks that the images fit on the disk and their ground truth in memory.

    Parameters
    ----------
    truth_bytes : int
        Memory for the ground truth of all samples.

    Raises
    ------
    InputError
        An image is too large, or there is too little space.
    """
    image_bytes = math.prod(shape) * item_bytes
    if image_bytes > MOST_IMAGE_BYTES:
        raise InputError(f"images {shape_text(shape)} take {image_bytes:,} bytes each, but data "
                         f"files hold images of at most {MOST_IMAGE_BYTES:,}; give smaller ones")
    folder = os.path.dirname(path) or "."
    free_disk = shutil.disk_usage(folder).free if os.path.isdir(folder) else math.inf
    free_memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for what, need, free in (("memory", truth_bytes, free_memory // 2),
                             (f"space in {folder}", samples * image_bytes, free_disk)):
        if need > free:
            raise InputError(f"{samples:,} images {shape_text(shape)} need {need:,} bytes of "
                             f"{what}, but {free:,} are free; give fewer or smaller ones")
