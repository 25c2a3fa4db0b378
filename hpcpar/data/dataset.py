"""Data files: HDF5 files of images or volumes with labels or targets.

================================  =============================================================
``images`` [N, C, H, W]           uint8, int16, uint16 or float32; volumes [N, C, D, H, W], signals
                                  [N, C, W]
``labels`` [N]                    int64, 0 <= label < classes; or, for regression,
``targets`` [N, outputs]          float32
                                  per pixel: ``labels`` [N, H, W], ``targets`` [N, outputs, H, W],
                                  with the extents of the network's output
``test_images``, ``test_labels``  optional held-out split (or ``test_targets``)
``class_names`` [classes]         optional names of the labels
attributes ``source, classes``    origin of the data, number of classes
attributes ``mean, scale``        one number or one per channel: readers use (x - mean) * scale
attribute ``ignore_label``        optional label to ignore in the loss and accuracies
================================  =============================================================
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError
from hpcpar.io.hdf5 import attributes, find, is_empty, open_hdf5, replacing
from hpcpar.io.schema import Extent, convert
from hpcpar.network.layers.base import image_of

#: Callback with (samples written, samples in total) while a file is written.
Progress = Callable[[int, int], None]

#: Bytes of images in memory while a file is written.
BLOCK_BYTES = 16 << 20
#: Types of stored images; readers normalize whole numbers.
IMAGE_TYPES = tuple(map(np.dtype, ("u1", "i2", "u2", "f4")))
#: Label of ignored samples or pixels, and of the padding of a batch.
NO_LABEL = -1
REMEDY = "make it with: hpcpar data"
#: Held-out fraction if neither the source nor the user gives one.
TEST_FRACTION = 0.2
#: Fixed seed for the choice and order of samples, which makes files reproducible.
_SPLIT_SEED = 20171


@dataclass(frozen=True)
class DatasetSplit:
    """The checked training or test split of an open data file.

    Attributes
    ----------
    truth : h5py.Dataset
        Labels [N] or targets [N, outputs], followed by the image's axes if each pixel has its own.
    """

    images: h5py.Dataset
    truth: h5py.Dataset

    @property
    def samples(self) -> int:
        return int(self.images.shape[0])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a sample; a signal (C, W) is an image with one row (C, 1, W)."""
        return image_of(self.images.shape[1:])

    @property
    def extents(self) -> tuple[int, ...]:
        """Image extents of the ground truth; () if it is not per pixel."""
        kept = tuple(self.truth.shape[1 if self.truth.dtype.kind in "iu" else 2:])
        return (1, *kept) if len(kept) == 1 else kept


def where_of(path: str, prefix: str) -> str:
    """Name of a data file's part in messages."""
    return f"data file {path}{': the held-out part' if prefix else ''}"


def open_split(f: h5py.File, path: str, prefix: str, truth: str,
               pixels: bool | None = None) -> DatasetSplit:
    """Find and check the datasets of a split.

    Parameters
    ----------
    prefix : str
        Empty for the training split, ``test_`` for the test split.
    truth : {'labels', 'targets'}
        Ground truth that the network's loss takes.
    pixels : bool, optional
        Whether the loss takes ground truth per pixel; by default as in the file.

    Raises
    ------
    InputError
        A dataset is missing or has a wrong type or shape.
    """
    where = where_of(path, prefix)
    images, values = _both(f, path, prefix, truth)
    if images.ndim not in (3, 4, 5) or images.dtype not in IMAGE_TYPES:
        raise InputError(f"{where}: '{prefix}images' is {images.dtype} {images.shape}, not uint8, "
                         "int16, uint16 or float32 [N, C, H, W], [N, C, D, H, W] or [N, C, W]; "
                         f"{REMEDY}")
    per_pixel = values.ndim > (1 if truth == "labels" else 2)
    if pixels is not None and pixels != per_pixel:
        has, takes = ("pixel" if pixelwise else "image" for pixelwise in (per_pixel, pixels))
        raise InputError(f"{where} holds {truth} for each {has}, but the network's loss takes one "
                         f"for each {takes}; make other data with: hpcpar data synthetic"
                         f"{' --pixels' if pixels else ''}, or hpcpar data numpy")
    _check_truth(images, values, truth, f"{where}: '{prefix}{truth}'")
    for dataset in images, values:
        if is_empty(dataset):
            raise InputError(f"{where}: nothing was written to '{dataset.name[1:]}'; {REMEDY}")
    return DatasetSplit(images, values)


def _both(f: h5py.File, path: str, prefix: str, truth: str) -> tuple[h5py.Dataset, h5py.Dataset]:
    """The datasets of images and of ground truth."""
    other, command = "targets", "hpcpar data (which takes one-hot labels as whole numbers)"
    if truth == "targets":
        other, command = "labels", "hpcpar data synthetic --targets, or hpcpar data numpy"
    images, values = find(f, f"{prefix}images"), find(f, prefix + truth)
    if values is None and images is not None and find(f, prefix + other) is not None:
        raise InputError(f"{where_of(path, prefix)} holds {other}, but the network's loss takes "
                         f"{truth}; make other data with: {command}")
    if images is None or values is None:
        names = f"datasets '{prefix}images' and '{prefix}{truth}'"
        raise InputError(
            f"data file {path} has no {f'held-out part ({names})' if prefix else names}; {REMEDY}")
    return images, values


def _check_truth(images: h5py.Dataset, values: h5py.Dataset, truth: str, where: str) -> None:
    """Check shape and type of the ground truth; `where` names its dataset."""
    count, axes = images.shape[0], images.ndim - 2
    leading, kinds, wanted = 1, "iu", f"{count} whole numbers"
    if truth == "targets":
        leading, kinds, wanted = 2, "f", f"floating-point numbers [{count}, outputs]"
    # the output of a network for signals may be an image
    fits = (values.shape[:1] == (count,) and all(values.shape[1:])
            and values.ndim - leading in (0, axes, max(axes, 2)))
    if not fits or values.dtype.kind not in kinds:
        raise InputError(f"{where} is {values.dtype} {values.shape}, not {wanted}, followed by "
                         f"{axes} image axes for pixels; {REMEDY}")


class DataAttributes(msgspec.Struct):
    """The attributes of a data file that readers use."""

    source: str = ""
    classes: Extent | None = None
    mean: float | list[float] = 0.0
    scale: float | list[float] = 1.0
    ignore_label: int | None = None


def read_attributes(f: h5py.File, path: str) -> DataAttributes:
    """The attributes of a data file."""
    where = f"data file {path}"
    return convert(attributes(f, where, REMEDY), DataAttributes, where, REMEDY)


def create_split(f: h5py.File, prefix: str, count: int, shape: tuple[int, ...], dtype: Any,
                 truth: tuple[int, ...] = (), truth_dtype: str = "i8",
                 grows: bool = False) -> DatasetSplit:
    """Create the two datasets of a split; a chunk has one sample with about 32 rows and planes.

    Parameters
    ----------
    shape, truth : tuple of int
        Shapes of a sample (channels first) and of its ground truth.
    truth_dtype : str
        A floating-point type for targets, an integer type for labels.
    grows : bool
        Whether the number of samples may change later.
    """
    def dataset(name: str, sample: tuple[int, ...], leading: int, kind: Any) -> h5py.Dataset:
        image = sample[leading:]
        tile = [*(-(-e // -(-e // 32)) for e in image[:-1]), *image[-1:]]
        chunks = (1, *sample[:leading], *tile) if count and image else None
        return f.create_dataset(prefix + name, (count, *sample), kind, chunks=chunks,
                                maxshape=(None, *sample) if grows else None)

    targets = truth_dtype.startswith("f")
    return DatasetSplit(dataset("images", shape, 1, dtype), dataset(
        "targets" if targets else "labels", truth, int(targets), truth_dtype))


def held_out(labels: NDArray[np.int64], fraction: float | None) -> NDArray[np.bool_]:
    """Mask [N] of a stratified test split: a random fraction of each class, with a fixed seed.

    The fraction is `TEST_FRACTION` by default.

    Raises
    ------
    InputError
        The fraction is out of range or leaves no training sample.
    """
    fraction = TEST_FRACTION if fraction is None else fraction
    if not 0 <= fraction < 1:
        raise InputError(f"held-out fraction {fraction}: give a number of at least 0 and below 1")
    mask = np.zeros(len(labels), bool)
    rng = np.random.default_rng(_SPLIT_SEED)
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        mask[samples[: round(len(samples) * fraction)]] = True
    if mask.all():
        raise InputError(f"held-out fraction {fraction} leaves no image to train with; give a "
                         "smaller one")
    return mask


class ChannelStatistics:
    """Mean and standard deviation of each channel of integer images, block by block."""

    def __init__(self, channels: int) -> None:
        # Python's integers do not overflow
        self.count, (self.sums, self.squares) = 0, np.zeros((2, channels), object)

    def add(self, images: NDArray[Any]) -> None:
        """Add images [n, C, ...]."""
        flat = images.reshape(*images.shape[:2], math.prod(images.shape[2:]))
        self.count += len(flat) * flat.shape[2]
        self.sums += flat.sum((0, 2), dtype=np.int64).astype(object)
        self.squares += np.einsum("nci,nci->c", flat, flat, dtype=np.int64,
                                  casting="unsafe").astype(object)

    def mean_and_scale(self) -> dict[str, NDArray[np.float64]]:
        """Attributes ``mean`` and ``scale`` of a data file, by default 0 and 1."""
        count = max(1, self.count)
        mean, squares = (np.asarray(sums / count, float) for sums in (self.sums, self.squares))
        deviation = np.sqrt(np.maximum(squares - mean**2, 0))
        # the bound keeps the scale of constant channels finite
        return {"mean": mean, "scale": 1 / np.maximum(deviation, 1.0)}


def digits(path: str, size: int = 8) -> None:
    """Write scikit-learn's handwritten digits: 1,797 images of 8 x 8, a fifth held out.

    Parameters
    ----------
    size : int
        Height and width of the stored images; larger ones repeat pixels.

    Raises
    ------
    InputError
        scikit-learn is missing, or the file cannot be written.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as err:
        raise InputError(f"the bundled digits need scikit-learn ({err}); install it with: pip "
                         "install 'hpcpar[digits]'") from err
    bunch = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(bunch.target))
    nearest = np.arange(size) * 8 // size
    pixels = bunch.images[order].astype(np.uint8)[:, None, nearest][..., nearest]
    labels = bunch.target[order].astype(np.int64)
    test = held_out(labels, TEST_FRACTION)
    with replacing(path, "data file") as f:
        for prefix, chosen in (("", ~test), ("test_", test)):
            made = create_split(f, prefix, int(chosen.sum()), pixels.shape[1:], "u1")
            made.images[...], made.truth[...] = pixels[chosen], labels[chosen]
        train = pixels[~test].astype(np.float64)
        f.attrs.update(source="scikit-learn load_digits", classes=10, mean=train.mean(),
                       scale=1 / train.std())


def info(path: str) -> dict[str, Any]:
    """Shapes, types, source, classes, normalization and size in bytes of a data file.

    Raises
    ------
    InputError
        The file is damaged or not a data file.
    """
    with open_hdf5(path, "data file", REMEDY) as f:
        out: dict[str, Any] = {"path": path, "bytes": os.path.getsize(path)}
        truth = "targets" if "targets" in f else "labels"
        for prefix in ("", "test_") if "test_images" in f else ("",):
            split = open_split(f, path, prefix, truth)
            for name, dataset in ("images", split.images), (truth, split.truth):
                out[prefix + name] = {"shape": list(dataset.shape), "dtype": str(dataset.dtype)}
        stored = read_attributes(f, path)
        return out | {name: getattr(stored, name) for name in stored.__struct_fields__
                      if name in f.attrs}
