"""Images and ground truth from HDF5 files of any layout."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.channels import channels_first
from hpcpar.data.dataset import Progress
from hpcpar.data.part_names import by_part, part_folders
from hpcpar.errors import InputError
from hpcpar.io.files import reason
from hpcpar.io.hdf5 import check, find, is_empty, open_hdf5
from hpcpar.io.read_limit import bounded, require_memory
from hpcpar.network.layers.base import shape_text

#: Suffixes of HDF5 files in a folder; other files are ignored.
SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_WHAT, _REMEDY = "HDF5 file", "write it again"


def from_hdf5(path: str, source: str, images: str = "", truth: str = "",
              options: ArrayOptions | None = None, *, one_per_file: bool = False,
              channels_last: bool | None = None, allow_external: bool = False,
              progress: Progress | None = None) -> None:
    """Write a data file from the datasets of an HDF5 file, or of all such files in a folder.

    Parameters
    ----------
    source : str
        A file; or a folder of files, perhaps in ``train`` and in ``val``, ``valid`` or ``test``.
        Files are read in the order of their names, one after the other.
    images, truth : str
        Names of the datasets (``group/name``), as in `hpcpar.data.numpy_files.from_numpy`. By
        default, they are named as the arrays of a .npz file.
    one_per_file : bool
        Whether the datasets of a file are one sample, without an axis for samples.
    channels_last : bool, optional
        As in `from_numpy`.
    allow_external : bool
        Whether a file may keep data in other files.

    Raises
    ------
    InputError
        A file cannot be read or written, or its contents do not fit.
    """
    options = options or ArrayOptions()
    if bool(images) != bool(truth):
        raise InputError("--images and --labels name one dataset each; give both or none")
    with ExitStack() as stack:
        parts, found = [], _parts(source, images, truth, allow_external)
        for files, names in found:
            arrays = [stack.enter_context(_Joined(files, name, one_per_file)) for name in names]
            x = Images(channels_first(arrays[0].name, arrays[0], channels_last), arrays[0].name)
            parts.append((x, Truth(arrays[1], arrays[1].name, x, options)))
        described = ", ".join(f"'{name}'" for name in found[0][1])
        write_arrays(path, parts, f"HDF5 file {os.path.basename(source)}: {described}", options,
                     progress)


def _parts(source: str, images: str, truth: str,
           allow_external: bool) -> list[tuple[list[str], list[str]]]:
    """The files of the training part and of a held-out part, and the names of their datasets."""
    folders = _folders(source)
    for files in folders:
        check(files, _WHAT, _REMEDY, allow_external)
    if images:
        return [(files, [images, truth]) for files in folders]
    with open_hdf5(folders[0][0], _WHAT, _REMEDY) as f:
        names: list[str] = []
        f.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset)
                     else None)
    found = by_part(names, folders[0][0], "name them with --images and --labels")
    if len(folders) == 1:
        return [(folders[0], chosen) for chosen in found.values()]
    if len(found) > 1:
        raise InputError(f"{source} has held-out files and held-out datasets; name the datasets "
                         "with --images and --labels")
    return [(files, found[""]) for files in folders]


def _folders(source: str) -> list[list[str]]:
    """The files of the training part, and of a held-out part if there is one."""
    root = Path(source)
    if not root.is_dir():
        return [[source]]
    places = [root / part for part in part_folders(root)]
    out = [sorted(str(p) for p in place.iterdir() if p.suffix.lower() in SUFFIXES)
           for place in places]
    for place, files in zip(places, out, strict=True):
        if not files:
            raise InputError(f"{place} has no HDF5 files ({', '.join(SUFFIXES)}); name the folder "
                             "that holds them")
    return out


class _Joined:
    """The datasets of one name in several files, one after the other: an array [N, ...]."""

    def __init__(self, files: Sequence[str], name: str, one_per_file: bool) -> None:
        self._files, self._dataset, self._one = files, name, one_per_file
        self.name = f"{files[0]}: '{name}'" + f" and {len(files) - 1} more" * (len(files) > 1)
        self._open: tuple[int, h5py.File] | None = None
        first = self._of(0)
        self.dtype, sample = first.dtype, tuple(first.shape[0 if one_per_file else 1:])
        if one_per_file:
            ends = np.arange(1, len(files) + 1)
        else:
            ends = np.cumsum([self._of(i).shape[0] for i in range(len(files))])
        self._ends: list[int] = ends.tolist()
        self.shape = (self._ends[-1], *sample)

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _of(self, number: int) -> h5py.Dataset:
        """The dataset of a file, checked."""
        if self._open is None or self._open[0] != number:
            self.__exit__()
            self._open = number, open_hdf5(self._files[number], _WHAT, _REMEDY)
        where = f"{self._files[number]}: '{self._dataset}'"
        found = find(self._open[1], self._dataset)
        if found is None:
            raise InputError(f"{self._files[number]} has no dataset '{self._dataset}'; name it "
                             "with --images and --labels")
        _require_readable(found, where)
        axes = tuple(found.shape if self._one else found.shape[1:])
        if not self._one and not found.shape:
            raise InputError(f"{where} is a single number; add --one-per-file if each file holds "
                             "one sample")
        if hasattr(self, "shape") and (axes, found.dtype) != (self.shape[1:], self.dtype):
            raise InputError(f"{where} holds {found.dtype} of shape {shape_text(found.shape)}, "
                             f"unlike {self._files[0]}; give files with samples of one kind")
        return found

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        out = np.empty((samples.stop - samples.start, *self.shape[1:]), self.dtype)
        for number, end in enumerate(self._ends):
            begin = self._ends[number - 1] if number else 0
            low, high = max(begin, samples.start), min(end, samples.stop)
            if low < high:
                dataset = self._of(number)
                at = slice(low - samples.start, high - samples.start)
                with _reading(f"{self._files[number]}: '{self._dataset}'"):
                    out[at] = dataset[...][None] if self._one else dataset[low - begin:high - begin]
        return out


def _require_readable(dataset: h5py.Dataset, where: str) -> None:
    """Checks that a dataset holds numbers, in chunks that fit into memory, whose compression is
    known.
    """
    if dataset.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {dataset.dtype}, not numbers; choose another dataset")
    if is_empty(dataset):
        raise InputError(f"{where} is empty: nothing was written to it; {_REMEDY}")
    chunk = dataset.chunks or ()
    require_memory(2 * math.prod(chunk) * dataset.dtype.itemsize,
                   f"one chunk {shape_text(chunk)} of {where}", "store it in smaller chunks")
    stored = dataset.id.get_create_plist()
    for i in range(stored.get_nfilters()):
        code, _, _, name = stored.get_filter(i)
        if not _knows(code):
            raise InputError(f"{where} is compressed by {name.decode(errors='replace') or code}, "
                             "which needs a plugin; install some with: pip install 'hpcpar[hdf5]'")


def _knows(code: int) -> bool:
    """True if a compression can be read, perhaps by hdf5plugin."""
    if not h5py.h5z.filter_avail(code):
        try:
            import hdf5plugin  # noqa: F401
        except ImportError:
            return False
    return bool(h5py.h5z.filter_avail(code))


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns faults of an HDF5 file into one line, and limits what reading costs."""
    with bounded(where, "store smaller chunks and samples"):
        try:
            yield
        except (OSError, RuntimeError, ValueError) as err:
            cause = reason(err) if isinstance(err, OSError) else err
            raise InputError(f"{where} cannot be read ({cause}); {_REMEDY}") from err
