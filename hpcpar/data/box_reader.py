"""Reading the same box of chosen samples of a dataset."""

from __future__ import annotations

import itertools
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcpar.data.augment import Crops
from hpcpar.data.dataset import REMEDY
from hpcpar.errors import InputError
from hpcpar.io.files import reason
from hpcpar.plan.boxes import Box, items
from hpcpar.plan.boxes import shape as shape_of


class BoxReader:
    """One box of each sample of a dataset [N, ...].

    Parameters
    ----------
    path : str
        Path of the data file, for messages.
    box : Box
        Box without the sample axis. For signals it includes the image's single row, which the
        dataset lacks.
    resident_bytes : int
        Size limit up to which the boxes of all samples stay in memory.

    Raises
    ------
    InputError
        The file is damaged.
    """

    def __init__(self, path: str, dataset: h5py.Dataset, box: Box, resident_bytes: int) -> None:
        self.path, self.dataset, self.shape = path, dataset, shape_of(box)
        stored = box if dataset.ndim == len(box) + 1 else (*box[:-2], box[-1])
        self._origin, self._extents = tuple(start for start, _ in stored), shape_of(stored)
        self.resident: NDArray[Any] | None = None
        samples = int(dataset.shape[0])
        if samples * items(box) * dataset.dtype.itemsize <= resident_bytes:
            self.resident = self._read(np.arange(samples))

    def of(self, chosen: NDArray[np.int64], epoch: int) -> NDArray[Any]:
        """Boxes of the chosen samples [n, ...]; they are the same in every epoch."""
        return self._read(chosen) if self.resident is None else self.resident[chosen]

    def _read(self, chosen: NDArray[np.int64]) -> NDArray[Any]:
        """Read samples in file order, consecutive ones at once.

        This uses h5py's low-level interface, because selection by a list takes milliseconds per
        sample on chunked data.
        """
        out = np.empty((len(chosen), *self.shape), self.dataset.dtype)
        dataset = self.dataset.id
        space, kind = dataset.get_space(), h5py.h5t.py_create(out.dtype)
        positions = np.argsort(chosen)
        samples = chosen[positions]
        breaks = np.flatnonzero((np.diff(samples) != 1) | (np.diff(positions) != 1)) + 1
        ends = [0, *breaks.tolist(), len(chosen)] if out.size else []
        try:
            for a, b in itertools.pairwise(ends):
                count = (b - a, *self._extents)
                space.select_hyperslab((int(samples[a]), *self._origin), count)
                start = int(positions[a])
                dataset.read(h5py.h5s.create_simple(count), space, out[start : start + b - a], kind)
        except OSError as err:
            raise InputError(
                f"data file {self.path} cannot be read ({reason(err)}); {REMEDY}") from err
        return out


class CropReader(BoxReader):
    """One box from the crop of each sample of a dataset [N, ..., *image]."""

    def __init__(self, path: str, dataset: h5py.Dataset, box: Box, resident_bytes: int,
                 crops: Crops) -> None:
        self._crops, axes = crops, len(crops.stored)
        self._box, self._cut = box[-axes:], shape_of(box)
        super().__init__(path, dataset, (*box[:-axes], *crops.window(self._box)), resident_bytes)

    def of(self, chosen: NDArray[np.int64], epoch: int) -> NDArray[Any]:
        windows = super().of(chosen, epoch)
        if not self._crops.random:
            return windows
        drawn = self._crops.draw(epoch)[chosen]
        out = np.empty((len(chosen), *self._cut), windows.dtype)
        for i, window in enumerate(windows):
            out[i] = self._crops.cut(window, self._box, drawn[i])
        return out
