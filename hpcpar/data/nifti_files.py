"""Volumes and their masks from folders of NIfTI files, as medical data sets have them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.dataset import Progress
from hpcpar.data.file_samples import FileSamples
from hpcpar.errors import InputError
from hpcpar.io.files import reason, require_regular
from hpcpar.io.read_limit import bounded, require_memory

SUFFIXES = (".nii", ".nii.gz")
#: The end of a name that counts channels of one case: ``case_0000.nii.gz``.
_CHANNEL = re.compile(r"_(\d{4})$")
#: A volume of one channel or several is its files, or its one file with a fourth axis.
_Case = tuple[str, ...]


def from_nifti(path: str, images: str, masks: str, shape: tuple[int, ...],
               options: ArrayOptions | None = None, *, progress: Progress | None = None) -> None:
    """Write a data file from a folder of volumes and a folder of masks of the same names.

    A case is one file, with its channels along a fourth axis, or the files ``case_0000``,
    ``case_0001``, ... of its channels. Volumes are turned to the standard orientation, and stored
    as [C, D, H, W] with the axes z, y, x. Each is cropped at its center to `shape`; where it is
    smaller, its smallest value surrounds it, and label 0 its mask.

    Parameters
    ----------
    shape : tuple of int
        (C, D, H, W) of the stored volumes.

    Raises
    ------
    InputError
        nibabel is missing, a case has no mask or cannot be read, or the labels do not fit.
    """
    try:
        import nibabel  # noqa: F401
    except ImportError as err:
        raise InputError(f"NIfTI files need nibabel ({err}); install it with: pip install "
                         "'hpcpar[nifti]'") from err
    if len(shape) != 4:
        raise InputError(f"volumes {'x'.join(map(str, shape))}: give CxDxHxW")
    options = options or ArrayOptions()
    cases, labels = _cases(images), _cases(masks)
    for name, files in labels.items():
        if len(files) > 1:
            raise InputError(f"{files[0]} and {files[1]} are masks of case '{name}'; keep one")
    for here, there, folder in ((cases, labels, masks), (labels, cases, images)):
        for name in here:
            if name not in there:
                raise InputError(f"{here[name][0]} has no partner '{name}' in {folder}; add it, or "
                                 "remove this file")
    pairs = [(cases[name], labels[name]) for name in cases]
    first = pairs[0][0][0]
    dtype = _read(first).dtype

    def volume(case: _Case) -> NDArray[Any]:
        values = _volume(case, shape)
        if not np.can_cast(values.dtype, dtype):
            raise InputError(f"{case[0]} holds {values.dtype}, {first} {dtype}; save all in one "
                             "type")
        return values

    x = Images(FileSamples([case for case, _ in pairs], shape, dtype, volume), images)
    y = Truth(FileSamples([mask for _, mask in pairs], shape[1:], np.dtype("i4"),
                          lambda mask: _mask(mask[0], shape[1:])), masks, x, options)
    write_arrays(path, [(x, y)], f"NIfTI files of {Path(images).name}", options, progress)


def _cases(folder: str) -> dict[str, _Case]:
    """Files by name of their case, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(Path(folder).rglob("*")):
        if file.name.lower().endswith(SUFFIXES) and file.is_file():
            stem = re.sub(r"\.nii(\.gz)?$", "", str(file.relative_to(folder)), flags=re.I)
            found.setdefault(_CHANNEL.sub("", stem), []).append(str(file))
    if not found:
        raise InputError(f"{folder} has no NIfTI files ({', '.join(SUFFIXES)}); name the folder "
                         "that holds them")
    return {name: tuple(files) for name, files in found.items()}


def _volume(case: _Case, shape: tuple[int, ...]) -> NDArray[Any]:
    """A case's channels [C, D, H, W]."""
    read = [_read(file) for file in case]
    channels = [part for values in read for part in values]
    if len(channels) != shape[0] or len({part.shape for part in channels}) > 1:
        raise InputError(f"{case[0]}: the case has {len(channels)} channels of "
                         f"{sorted({part.shape for part in channels})}, but --input has "
                         f"{shape[0]}; give channels of one size")
    return np.stack([_centered(part, shape[1:], part.min()) for part in channels])


def _mask(file: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A mask's labels [D, H, W]."""
    (labels, *more) = _read(file)
    if more or (labels != np.rint(labels)).any():
        raise InputError(f"{file}: a mask is one volume of whole numbers; give a label "
                         "for each pixel")
    return _centered(labels.astype(np.int32), shape, 0)


def _read(file: str) -> NDArray[Any]:
    """The values [channels, z, y, x] of a file, turned to the standard orientation."""
    import nibabel

    try:
        require_regular(file)
        opened: Any = nibabel.load(file)
        require_memory(3 * 8 * math.prod(opened.shape), file, "give smaller volumes")
        with bounded(file, "give smaller volumes"):
            values = np.asarray(nibabel.as_closest_canonical(opened).dataobj)
    except InputError:
        raise
    except Exception as err:  # whatever nibabel raises on a damaged file
        raise InputError(f"{file} cannot be read as NIfTI ({reason(err)}); fetch it again, or "
                         "remove it and its partner") from err
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim != 4:
        raise InputError(f"{file} has {values.ndim} axes; give volumes, with channels as the "
                         "fourth axis")
    return values.transpose(3, 2, 1, 0)


def _centered(values: NDArray[Any], shape: tuple[int, ...], around: float) -> NDArray[Any]:
    """The center of a volume, surrounded by a value where it is smaller."""
    out = np.full(shape, around, values.dtype)
    kept = [min(a, b) for a, b in zip(values.shape, shape, strict=True)]
    source, target = (tuple(slice((size - n) // 2, (size - n) // 2 + n)
                            for size, n in zip(extents, kept, strict=True))
                      for extents in (values.shape, shape))
    out[target] = values[source]
    return out
