"""Images and ground truth from NumPy files, ``.npy`` and ``.npz``."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, SampleArray, Truth, write_arrays
from hpcpar.data.channels import channels_first
from hpcpar.data.dataset import Progress
from hpcpar.data.part_names import by_part
from hpcpar.errors import InputError
from hpcpar.io.files import reason, require_regular
from hpcpar.io.read_limit import bounded, require_memory

#: How files of other formats begin, and what reads them.
_OTHERS = {b"\x89HDF\r\n\x1a\n": ("an HDF5 file", "hdf5"), b"CDF": ("a NetCDF file", "xarray")}


def from_numpy(path: str, images: str, truth: str = "", options: ArrayOptions | None = None, *,
               channels_last: bool | None = None, progress: Progress | None = None) -> None:
    """Write a data file from two .npy files, or from one .npz file.

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
    with ExitStack() as stack:
        if _is_archive(images):
            if truth:
                raise InputError(f"{images} itself holds the labels or targets; leave out {truth}")
            with _reading(images):
                archive = stack.enter_context(zipfile.ZipFile(images))
            arrays = _archived(images, archive)
        elif truth:
            arrays = [((images, _mapped(images)), (truth, _mapped(truth)))]
        else:
            _mapped(images)
            raise InputError(f"{images} holds only images; give the .npy file of their labels, too")
        parts = []
        for (x, pixels), (y, known) in arrays:
            made = Images(channels_first(x, pixels, channels_last), x)
            parts.append((made, Truth(known, y, made, options)))
        sources = [images, truth] if truth else [name for (name, _), _ in arrays]
        names = ", ".join(map(os.path.basename, sources))
        write_arrays(path, parts, f"NumPy files {names}", options, progress)


def _is_archive(path: str) -> bool:
    """True for .npz files."""
    with _reading(path):
        require_regular(path)
        return zipfile.is_zipfile(path)


def _archived(path: str, archive: zipfile.ZipFile) -> list[Any]:
    """(name, array) of images and ground truth, for the training part and a held-out part."""
    members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    parts = by_part(members, path, "save them with numpy.savez(FILE, images=..., labels=...)")
    out = []
    for part, keys in parts.items():
        where = f"{path}: {part and 'held-out part '}"
        out.append([(f"{where}'{key}'", _member(archive, members[key], f"{where}'{key}'"))
                    for key in keys])
    return out


def _member(archive: zipfile.ZipFile, name: str, where: str) -> SampleArray:
    """An array of a .npz file; whole in memory only if it is stored column by column."""
    with _reading(where):
        member = _Member(archive, name, where)
    if not member.by_columns:
        return member
    require_memory(math.prod(member.shape) * member.dtype.itemsize, f"{where} (in Fortran's order)",
                   "save it in C order: numpy.ascontiguousarray")
    whole: NDArray[Any] = member[0:member.shape[0]]
    return whole.reshape(member.shape[::-1]).T


class _Member:
    """An array of a .npz file that is read forward, some samples at a time."""

    def __init__(self, archive: zipfile.ZipFile, name: str, where: str) -> None:
        self._open: Callable[[], Any] = lambda: archive.open(name)
        self._where, self._stream, self._next = where, self._open(), 0
        version = np.lib.format.read_magic(self._stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0}[version]
        self.shape, by_columns, self.dtype = read(self._stream)
        self.by_columns = by_columns and len(self.shape) > 1
        self._header_bytes = self._stream.tell()
        if self.dtype.hasobject or not self.dtype.itemsize or min(self.shape, default=0) < 0:
            raise ValueError(f"it holds {self.dtype} of shape {self.shape}")

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        shape = (samples.stop - samples.start, *self.shape[1:])
        sample_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        with _reading(self._where), bounded(self._where, "store smaller samples"):
            if samples.start < self._next:  # an archive is read forward only
                self._stream = self._open()
                self._stream.read(self._header_bytes)
                self._next = 0
            self._stream.seek((samples.start - self._next) * sample_bytes, os.SEEK_CUR)
            content = self._stream.read(shape[0] * sample_bytes)
            self._next = samples.stop
            return np.frombuffer(content, self.dtype).reshape(shape)


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
    if _is_archive(path):
        raise InputError(f"{path} is a .npz file; give one such file, with images and labels")
    with _reading(path), open(path, "rb") as f:
        start = f.read(8)
    for begins, (what, command) in _OTHERS.items():
        if start.startswith(begins):
            raise InputError(f"{path} is {what}; convert it with: hpcpar data {command} FILE.h5 "
                             f"{path}")
    with _reading(path):
        return np.load(path, mmap_mode="r", allow_pickle=False)
