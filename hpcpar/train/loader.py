"""Reading a rank's part of every mini-batch: only the samples, channels, rows and columns of its box."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcpar.errors import InputError, unknown
from hpcpar.plan.boxes import Box, Interval, items
from hpcpar.plan.boxes import shape as shape_of
from hpcpar.train.dataset import open_hdf5, reason
from hpcpar.train.prefetch import Prefetch

_REMEDY = "make it with: hpcpar data"
#: Label of a place in the last test batch that no sample fills.
NO_LABEL = -1
#: Up to this size a rank keeps its rows of all images: a thread that reads tiny batches takes the interpreter from the training.
RESIDENT_BYTES = 8 << 20


class Loader:
    """The mini-batches of a data file as one rank needs them.

    Batch b of an epoch holds the samples ``order[b * B : (b + 1) * B]``; the order of epoch e is a permutation drawn from (seed, e)
    alone, the same on every rank and under every plan. What is left after the last full training batch is not used; the last test
    batch is filled up with zeros labelled `NO_LABEL`, so that evaluation counts every sample once. Test samples come in the
    order of the file.

    Parameters
    ----------
    path : str
    box : Box
        The rank's part of the input [B, C, H, W]; it may be empty.
    labels : tuple of int
        Interval of the batch whose labels the rank needs.
    batch : int
        Mini-batch B over all ranks.
    dtype : dtype
        Of the images given out.
    split : {'train', 'test'}
    shape : tuple of int, optional
        The network's images C, H, W, to check the file against; likewise `classes`.

    Raises
    ------
    InputError
        The file is missing, damaged, or does not fit the network or the batch.
    """

    def __init__(self, path: str, box: Box, labels: Interval, batch: int, dtype: DTypeLike = np.float32, seed: int = 0,
                 shuffle: bool = True, split: str = "train", *, shape: tuple[int, ...] | None = None, classes: int | None = None) -> None:
        if split not in ("train", "test"):
            raise unknown("split", split, ("train", "test"))
        self.path, self.box, self.label_interval, self.batch_size = path, box, labels, batch
        self.dtype, self.seed, self.split = np.dtype(dtype), seed, split
        self.shuffle = shuffle and split == "train"
        self._lock = threading.Lock()
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))
        self._file = open_hdf5(path, "data file", _REMEDY)
        try:
            self._open(shape, classes)
        except OSError as err:
            self._file.close()
            raise InputError(f"data file {path} cannot be read ({reason(err)}); {_REMEDY}") from err
        except BaseException:
            self._file.close()
            raise

    def _open(self, shape: tuple[int, ...] | None, classes: int | None) -> None:
        """Find and check the datasets."""
        prefix, where = "test_" if self.split == "test" else "", f"data file {self.path}"
        found = [self._file.get(prefix + name) for name in ("images", "labels")]
        if not all(isinstance(d, h5py.Dataset) for d in found):
            part = "held-out part (datasets 'test_images' and 'test_labels')" if prefix else "datasets 'images' and 'labels'"
            raise InputError(f"{where} has no {part}; {_REMEDY}")
        images, labels = found
        if images.ndim != 4 or images.dtype not in (np.dtype("u1"), np.dtype("f4")):
            raise InputError(f"{where}: '{prefix}images' is {images.dtype} {images.shape}, not uint8 or float32 [N, C, H, W]; {_REMEDY}")
        self.samples, sample = images.shape[0], images.shape[1:]
        if labels.shape != (self.samples,) or labels.dtype.kind not in "iu":
            raise InputError(f"{where}: '{prefix}labels' is {labels.dtype} {labels.shape}, not {self.samples} whole numbers; {_REMEDY}")
        if shape is not None and sample != tuple(shape):
            file, net = "x".join(map(str, sample)), "x".join(map(str, shape))
            raise InputError(f"{where} holds images {file}, the network takes {net}; make other data, or plan with --input {file}")
        if len(self.box) != 4 or any(b[0] < 0 or b[1] > e for b, e in zip(self.box, (self.batch_size, *sample), strict=True)):
            raise InputError(f"{where} holds images {sample}, the part {self.box} of a batch of {self.batch_size} lies outside; "
                             "plan with its shape")
        known = self.labels = labels[...].astype(np.int64)
        classes = int(self._file.attrs["classes"]) if classes is None and "classes" in self._file.attrs else classes
        if classes is not None and self.samples and (known.min() < 0 or known.max() >= classes):
            raise InputError(f"{where} holds labels from {known.min()} to {known.max()}, the network has {classes} classes "
                             f"(0 to {classes - 1}); plan with --classes {max(int(known.max()) + 1, 1)} or mend the labels")
        if self.samples < (self.batch_size if self.split == "train" else 1):
            raise InputError(f"{where} holds {self.samples} samples, fewer than one batch of {self.batch_size}; "
                             "use a smaller --batch or more data")
        self._images = images
        self._resident: NDArray[Any] | None = None
        if self.samples * items(self.box[1:]) * images.dtype.itemsize <= RESIDENT_BYTES:
            self._resident = np.empty((self.samples, *shape_of(self.box[1:])), images.dtype)
            self._read(np.arange(self.samples), self._resident)
        self._mean, self._scale = self._per_channel("mean", 0.0, sample[0]), self._per_channel("scale", 1.0, sample[0])

    def _per_channel(self, name: str, default: float, channels: int) -> NDArray[Any]:
        """The rank's channels of an attribute, [c, 1, 1] in the dtype of the output."""
        value = np.asarray(self._file.attrs.get(name, default), np.float64)
        if value.ndim > 1 or value.size not in (1, channels):
            raise InputError(f"data file {self.path}: attribute '{name}' has shape {value.shape}, not one number or {channels}; {_REMEDY}")
        (start, stop) = self.box[1]
        return np.broadcast_to(value.reshape(-1), channels)[start:stop].astype(self.dtype)[:, None, None]

    @property
    def batches_per_epoch(self) -> int:
        """Full batches of the training part, or all batches of the test part."""
        return self.samples // self.batch_size if self.split == "train" else -(-self.samples // self.batch_size)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Sample numbers in the order of an epoch, [N]."""
        with self._lock:
            if self._order[0] != epoch:
                if self.shuffle:
                    key = np.array([self.seed % 2**64, epoch], np.uint64)
                    order = np.random.Generator(np.random.Philox(key=key)).permutation(self.samples)
                else:
                    order = np.arange(self.samples)
                self._order = (epoch, order)
            return self._order[1]

    def _chosen(self, epoch: int, index: int, interval: Interval) -> NDArray[np.int64]:
        """Sample numbers of the places of an interval of a batch; fewer than places where a test batch is not full."""
        first = index * self.batch_size
        return self.order(epoch)[first + interval[0] : first + interval[1]]

    def batch(self, epoch: int, index: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The rank's images [n, c, h, w] and labels [n] of a batch.

        Raises
        ------
        InputError
            The file is damaged where it had to be read.
        """
        if not 0 <= index < self.batches_per_epoch:
            raise IndexError(f"batch {index} of an epoch of {self.batches_per_epoch}")
        start, stop = self.label_interval
        chosen = self._chosen(epoch, index, (start, stop))
        labels = np.full(stop - start, NO_LABEL, np.int64)
        labels[: len(chosen)] = self.labels[chosen]
        images = np.zeros(shape_of(self.box), self.dtype)
        if items(self.box):
            chosen = self._chosen(epoch, index, self.box[0])
            if self._resident is not None:
                raw = self._resident[chosen]
            else:
                raw = np.empty((len(chosen), *shape_of(self.box[1:])), self._images.dtype)
                self._read(chosen, raw)
            filled = images[: len(chosen)]
            np.subtract(raw, self._mean, out=filled, dtype=self.dtype, casting="unsafe")
            filled *= self._scale
        return images, labels

    def _read(self, chosen: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read samples in the order of the file, each run of neighbours at once, straight to their places in the batch.

        h5py's selection by a list takes milliseconds a sample on chunked data, hence its low-level interface.
        """
        dataset = self._images.id
        space, kind = dataset.get_space(), h5py.h5t.py_create(out.dtype)
        origin = tuple(start for start, _ in self.box[1:])
        places = np.argsort(chosen)
        sorted_ = chosen[places]
        breaks = np.flatnonzero((np.diff(sorted_) != 1) | (np.diff(places) != 1)) + 1
        ends = [0, *breaks.tolist(), len(chosen)] if len(chosen) else []
        try:
            for a, b in itertools.pairwise(ends):
                count = (b - a, *out.shape[1:])
                space.select_hyperslab((int(sorted_[a]), *origin), count)
                at = int(places[a])
                dataset.read(h5py.h5s.create_simple(count), space, out[at : at + b - a], kind)
        except OSError as err:
            raise InputError(f"data file {self.path} cannot be read ({reason(err)}); {_REMEDY}") from err

    def prefetch(self, epoch: int = 0, index: int = 0, count: int | None = None, depth: int = 2) -> Prefetch:
        """Batches from (epoch, index) on, read ahead by a thread (made on the spot where the images are resident).

        Parameters
        ----------
        count : int, optional
            Number of batches, over the ends of epochs; without it to the end of this epoch.
        depth : int
            Batches that may wait.
        """
        count = self.batches_per_epoch - index if count is None else count
        return Prefetch(self, epoch, index, count, depth if self._resident is None else 0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
