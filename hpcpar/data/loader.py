"""Loader of mini-batches: a rank reads only the samples, channels and pixels of its box."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcpar.data.augment import Augmentation, Crops
from hpcpar.data.box_reader import BoxReader, CropReader
from hpcpar.data.dataset import (
    NO_LABEL,
    REMEDY,
    DatasetSplit,
    open_split,
    read_attributes,
    where_of,
)
from hpcpar.data.label_extents import remedy
from hpcpar.errors import InputError, unknown
from hpcpar.io.files import reason
from hpcpar.io.hdf5 import content, open_hdf5
from hpcpar.io.read_limit import MOST_BYTES
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import shape_text
from hpcpar.plan.boxes import Box, Interval
from hpcpar.plan.boxes import shape as shape_of

#: Target of the padding in the last test batch.
NO_TARGET = math.nan
#: Size limit up to which a rank keeps its part of all images in memory: a thread that reads tiny
#: batches would compete with the training for the interpreter.
RESIDENT_BYTES = 8 << 20


class Loader:
    """One rank's part of each mini-batch in a data file.

    Batch b of an epoch has the samples ``order[b * B : (b + 1) * B]``. The order of epoch e is a
    permutation determined by (seed, e), the same on all ranks and in all plans. Samples after the
    last full training batch are dropped. Zeros with label `NO_LABEL` (or target `NO_TARGET`) pad
    the last test batch, so that evaluation counts each sample once. Test samples keep the order of
    the file.

    A rank with an empty box or without labels reads no data, but detects the same faults of the
    file as the other ranks.

    Parameters
    ----------
    box : Box
        The rank's part of the input [B, C, H, W] or [B, C, D, H, W]; it may be empty.
    labels : Interval or Box
        Interval of the labels [B] that the rank needs, or box of the targets [B, outputs], the
        labels [B, H, W] or the targets [B, outputs, H, W]; it may be empty.
    batch : int
        Mini-batch size B over all ranks.
    dtype : dtype
        Type of mean, scale and targets, thus of normalized images.
    split : {'train', 'test', 'all'}
        'all' iterates over the training split like a test split: each sample once, in the order of
        the file.
    shape : tuple of int, optional
        Sample shape of the network, which the file must have; with `Augmentation.CROP` its images
        may be larger.
    classes : int, optional
        Number of outputs of the network, to check labels or targets.
    extents : tuple of int, optional
        Extents of the network's output, which labels or targets per pixel must have; by default
        the input's.
    rows : array of int, optional
        Ascending samples of a batch whose images the rank reads, if they are not contiguous (a part
        of each micro-batch); they replace the first interval of `box`.
    augment : collection of Augmentation
        Changes of the training images and of their pixels' ground truth; other splits get center
        crops.

    Attributes
    ----------
    stored_dtype : dtype
        Type of the images in the file, in native byte order.
    mean, scale : array
        One number per channel of the rank, [c, 1, 1] or [c, 1, 1, 1]: the network takes
        (images - mean) * scale (`Backend.normalize`).

    Raises
    ------
    InputError
        The file is missing, damaged, or does not fit the network or the batch.
    """

    def __init__(self, path: str, box: Box, labels: Interval | Box, batch: int,
                 dtype: DTypeLike = np.float32, seed: int = 0, shuffle: bool = True,
                 split: str = "train", *, shape: tuple[int, ...] | None = None,
                 classes: int | None = None, extents: tuple[int, ...] | None = None,
                 rows: NDArray[np.int64] | None = None,
                 augment: Collection[Augmentation] = ()) -> None:
        if split not in ("train", "test", "all"):
            raise unknown("split", split, ("train", "test", "all"))
        self.path, self.batch_size = path, batch
        self._where = where_of(path, "test_" if split == "test" else "")
        self._rows = np.arange(*box[0]) if rows is None else rows
        self._box = box[1:]
        #: Box of the labels [B, ...] or of the targets [B, outputs, ...].
        self._truth_box: Box = labels if isinstance(labels[0], tuple) else (labels,)
        self._targets = len(self._truth_box) in (2, len(box))
        self.dtype, self.seed, self.split = np.dtype(dtype), seed, split
        self.shuffle = shuffle and split == "train"
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))
        self._file = open_hdf5(path, "data file", REMEDY)
        try:
            self._open(shape, classes, extents, augment)
        except OSError as err:
            self._file.close()
            raise InputError(f"data file {path} cannot be read ({reason(err)}); {REMEDY}") from err
        except BaseException:
            self._file.close()
            raise

    def _open(self, shape: tuple[int, ...] | None, classes: int | None,
              extents: tuple[int, ...] | None, augment: Collection[Augmentation]) -> None:
        """Find and check the datasets."""
        truth, pixels = "targets" if self._targets else "labels", len(self._truth_box) > 2
        datasets = open_split(self._file, self.path, "test_" if self.split == "test" else "", truth,
                              pixels)
        self.samples, stored = datasets.samples, datasets.sample_shape
        sample = stored if shape is None else tuple(shape)
        self._fits(stored, sample, Augmentation.CROP in augment)
        extents = sample[1:] if extents is None else extents
        if pixels:
            self._fits_output(datasets, sample[1:], extents, augment)
        crops = Crops(stored[1:], sample[1:], augment if self.split == "train" else (), self.seed,
                      self.samples)
        self._check_part(sample)
        attributes = read_attributes(self._file, self.path)
        self._classes = attributes.classes if classes is None and not self._targets else classes
        self._ignore = attributes.ignore_label
        if self._targets:
            self._check_outputs(datasets.truth.shape[1], self._truth_box[1])
        self._open_truth(datasets.truth, extents, crops if extents == sample[1:] else None)
        if self.samples < (self.batch_size if self.split == "train" else 1):
            raise InputError(f"{self._where} holds {self.samples} samples, fewer than one batch of "
                             f"{self.batch_size}; use a smaller --batch or more data")
        self._images = CropReader(self.path, datasets.images, self._box, RESIDENT_BYTES, crops)
        self.stored_dtype = datasets.images.dtype.newbyteorder("=")
        self.mean, self.scale = (self._per_channel(name, getattr(attributes, name), sample)
                                 for name in ("mean", "scale"))

    def _open_truth(self, values: h5py.Dataset, extents: tuple[int, ...],
                    crops: Crops | None) -> None:
        """Find and check labels or targets; `crops` cut those per pixel as they cut the images."""
        pixels = len(self._truth_box) > 2

        def reader(box: Box) -> BoxReader:
            if pixels and crops is not None:
                return CropReader(self.path, values, box, RESIDENT_BYTES, crops)
            return BoxReader(self.path, values, box, RESIDENT_BYTES if pixels else sys.maxsize)

        if not pixels:
            # held twice, beside two orders of the samples
            self._check_truth(content(values, self._where, REMEDY, MOST_BYTES // 4))
        self._truth = reader(self._truth_box[1:])
        #: Whole samples' labels, if some are ignored.
        self._whole: BoxReader | None = None
        if self._ignore is not None and not self._targets:
            self._whole = reader(tuple((0, e) for e in extents)) if pixels else self._truth
        if pixels and self._truth.resident is not None:
            self._check_truth(self._truth.resident)

    def _check_part(self, sample: tuple[int, ...]) -> None:
        """Check that the rank's part lies within a batch."""
        rows = (int(self._rows.min()), int(self._rows.max()) + 1) if len(self._rows) else (0, 0)
        if not _inside((rows, *self._box), (self.batch_size, *sample)):
            raise InputError(f"{self._where} holds images {sample}, which the rank's part "
                             f"{(rows, *self._box)} of a batch of {self.batch_size} exceeds; plan "
                             "with that shape")

    def _fits(self, stored: tuple[int, ...], sample: tuple[int, ...], crop: bool) -> None:
        """Check the images' shape against the network's."""
        larger = stored[:1] == sample[:1] and len(stored) == len(sample) and all(
            a >= b for a, b in zip(stored, sample, strict=True))
        file, net = shape_text(stored), shape_text(sample)
        where = f"{self._where} holds images {file}, but the network takes {net}"
        if stored != sample and not (larger and crop):
            remedy = ", or crop them with --augment crop" if larger else ""
            raise InputError(f"{where}; make other data, or plan with --input {file}{remedy}")
        if stored == sample and crop and self.split == "train":
            raise InputError(f"{where}: there is nothing to crop; make larger images, or leave "
                             "crop out of --augment")

    def _fits_output(self, file: DatasetSplit, image: tuple[int, ...], output: tuple[int, ...],
                     augment: Collection[Augmentation]) -> None:
        """Check the extents of labels or targets per pixel against the network's output."""
        stored, what = file.sample_shape[1:], "targets" if self._targets else "labels"
        changed = stored != image or (augment and self.split == "train")
        if changed and output != image:
            raise InputError(f"the network takes images {shape_text(image)} and its output is "
                             f"{shape_text(output)}: crops and flips move images and {what} of one "
                             "size together; leave out --augment, and augment before hpcpar data")
        wanted = stored if changed else output
        if file.extents != wanted:
            # people know signals without the row that they have here
            has, takes = (e[1:] if file.images.ndim == 3 and e[0] == 1 else e
                          for e in (file.extents, wanted))
            whose = "images are" if changed else "network's output is"
            raise InputError(f"{self._where} holds {what} {shape_text(has)}, but the {whose} "
                             f"{shape_text(takes)}; {remedy(has, takes)}")

    def _check_outputs(self, width: int, columns: Interval) -> None:
        """Check the number of targets in the file against the network's outputs."""
        outputs = self._classes
        if (outputs is not None and width != outputs) or not _inside((columns,), (width,)):
            raise InputError(
                f"{self._where} holds {width} targets per sample, but the network has "
                f"{outputs or columns[1]} outputs; plan with --classes {width}, or make other data")

    def _check_truth(self, values: NDArray[Any]) -> None:
        """Check the values of labels or targets."""
        if self._targets:
            if not np.isfinite(values).all():
                raise InputError(f"{self._where} holds targets that are not finite; "
                                 "fix or leave out those samples")
            return
        classes = self._classes
        if self._ignore is not None:
            values = values[values != self._ignore]
        if classes is not None and values.size and (values.min() < 0 or values.max() >= classes):
            low, high = int(values.min()), int(values.max())
            remedy = f"plan with --classes {high + 1} or fix the labels"
            if low < 0:  # PyTorch's ignore_index
                remedy = f"leave {low} out of the loss with hpcpar data numpy --ignore {low}"
            elif low == 1 and high == classes:
                remedy = "they start at 1: make the file with hpcpar data numpy --first-label 1"
            elif high > classes:
                remedy += f", or leave {high} out of the loss: hpcpar data numpy --ignore {high}"
            raise InputError(
                f"{self._where} holds labels from {low} to {high}, but the network has "
                f"{classes} classes (0 to {classes - 1}); {remedy}")

    def _per_channel(self, name: str, given: float | list[float],
                     sample: tuple[int, ...]) -> NDArray[Any]:
        """An attribute of the rank's channels, [c, 1, 1] or [c, 1, 1, 1], in `dtype`."""
        value = np.asarray(given, np.float64)
        if value.ndim > 1 or value.size not in (1, sample[0]):
            raise InputError(f"{self._where}: attribute '{name}' has shape {value.shape}, "
                             f"not one number or {sample[0]}; {REMEDY}")
        value = np.broadcast_to(value.reshape(-1), sample[0])[slice(*self._box[0])]
        return value.astype(self.dtype).reshape(-1, *(1 for _ in sample[1:]))

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches; a partial last batch counts except in training."""
        full, remainder = divmod(self.samples, self.batch_size)
        return full if self.split == "train" else full + bool(remainder)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Sample indices [N] in the order of an epoch."""
        if self._order[0] != epoch:
            order = np.arange(self.samples)
            if self.shuffle:
                key = np.array([self.seed % 2**64, epoch], np.uint64)
                order = np.random.Generator(np.random.Philox(key=key)).permutation(order)
            self._order = (epoch, order)
        return self._order[1]

    def batch(self, epoch: int, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rank's stored images [n, c, ...], and its labels [n, ...] or targets
        [n, outputs, ...].
        """
        if not 0 <= index < self.batches_per_epoch:
            raise IndexError(f"batch {index} of an epoch of {self.batches_per_epoch}")
        order = self._samples_of(epoch, index)
        values = self._truth.of(order[slice(*self._truth_box[0])], epoch)
        if self._truth.resident is None:
            self._check_truth(values)
        padding, kind = (NO_TARGET, self.dtype) if self._targets else (NO_LABEL, np.int64)
        labels = np.full(shape_of(self._truth_box), padding, kind)
        labels[: len(values)] = values
        if self._whole is not None:
            labels[labels == self._ignore] = NO_LABEL
        images = np.zeros((len(self._rows), *shape_of(self._box)), self.stored_dtype)
        if images.size:
            chosen = order[self._rows[self._rows < len(order)]]
            images[: len(chosen)] = self._images.of(chosen, epoch)
        return images, labels

    def _samples_of(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Samples of a batch; the last test batch may have fewer."""
        return self.order(epoch)[index * self.batch_size :][: self.batch_size]

    def counted(self, epoch: int, index: int) -> tuple[int, float]:
        """Samples of a batch over all ranks, and the number that counts in the loss.

        A sample with ignored pixels counts by the share of its other pixels.
        """
        order = self._samples_of(epoch, index)
        share = 1.0 if self._whole is None else float(
            (self._whole.of(order, epoch) != self._ignore).mean())
        return len(order), share * len(order)

    @property
    def resident(self) -> bool:
        """Whether all samples are in memory, so that prefetching has no benefit."""
        readers = (self._images, self._truth, self._whole)
        return all(reader is None or reader.resident is not None for reader in readers)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _inside(box: Box, shape: tuple[int, ...]) -> bool:
    """Whether a box lies within an array of this shape."""
    if len(box) != len(shape):
        return False
    return all(a >= 0 and b <= extent for (a, b), extent in zip(box, shape, strict=True))


def contents(path: str, network: Network) -> tuple[int, int]:
    """Number of samples of a data file, and bytes per value of its images; checks that it suits the
    network.

    Raises
    ------
    InputError
        It does not, or the file is not a data file.
    """
    box = tuple((0, 0) for _ in (0, *network.image_shape))
    truth = tuple((0, 0) for _ in (0, *network.truth_shape))
    with Loader(path, box, truth, 1, shape=network.image_shape, classes=network.classes,
                extents=network.output_extents) as loader:
        return loader.samples, loader.stored_dtype.itemsize
