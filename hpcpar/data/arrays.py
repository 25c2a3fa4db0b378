"""Conversion of arrays of images and ground truth to data files, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.dataset import (
    BLOCK_BYTES,
    IMAGE_TYPES,
    NO_LABEL,
    TEST_FRACTION,
    ChannelStatistics,
    Progress,
    create_split,
    held_out,
)
from hpcpar.data.label_extents import LabelExtentOptions
from hpcpar.data.room import require_room
from hpcpar.errors import InputError
from hpcpar.io.hdf5 import replacing
from hpcpar.io.read_limit import MOST_BYTES, require_memory
from hpcpar.network.layers.base import shape_text
from hpcpar.options.checks import part, positive, whole
from hpcpar.options.fields import option

#: Memory for each sample's label, place and part.
SAMPLE_BYTES = 24
#: The label that 8-bit masks usually reserve for ignored pixels.
USUAL_IGNORED = 255
_label = partial(whole, -2**31, 2**31)


class SampleArray(Protocol):
    """An array [N, ...] that is read some samples at a time."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, samples: slice, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class ArrayOptions(LabelExtentOptions):
    """The held-out part and the meaning of labels."""

    classes: int | None = option(
        None, positive, "number of classes (default: the largest label plus one)", "K")
    test_fraction: float | None = option(
        None, part, "fraction of every class (with targets or pixel labels: of all samples) to "
        f"hold out if the source has no held-out part (default {TEST_FRACTION})", "F")
    ignore: int | None = option(
        None, _label, "label that loss and accuracy ignore, such as 255 or -1", "LABEL")
    first_label: int | None = option(
        None, _label, "label of the first class (default 0; labels that start at 1 are refused "
        "without this option)", "LABEL")


class Images:
    """Images [N, C, H, W], volumes [N, C, D, H, W] or signals [N, C, W] from a source.

    Raises
    ------
    InputError
        The array has another shape or type.
    """

    def __init__(self, blocks: SampleArray, name: str) -> None:
        self.blocks, self.name, self.samples = blocks, name, blocks.shape[0]
        self.shape = tuple(blocks.shape[1:])
        if len(self.shape) not in (2, 3, 4) or not all(blocks.shape) or (
                blocks.dtype.kind not in "biuf"):
            raise InputError(f"{name} holds {blocks.dtype} of shape {tuple(blocks.shape)}; give "
                             "images [N, C, H, W] (volumes [N, C, D, H, W]) of whole or "
                             "floating-point numbers")
        self.dtype = _stored_type(blocks, name)
        converted_bytes = 0 if self.dtype == blocks.dtype else self.dtype.itemsize
        _require_memory(blocks, 1 + converted_bytes, name)

    def block(self, samples: slice) -> NDArray[Any]:
        """A block of images in the type of the data file.

        Raises
        ------
        InputError
            An image is not finite.
        """
        with np.errstate(over="ignore"):
            images = np.asarray(self.blocks[samples], self.dtype)
        finite = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if not finite.all():
            raise InputError(f"{self.name}: image {samples.start + int(finite.argmin())} has NaN "
                             "or infinite values (as float32); fix or leave out such images")
        return images


class Truth:
    """Labels [N] or targets [N, outputs] from a source, followed by image axes if each pixel of the
    network's output has its own. Labels may have an extra axis of length one, or be one-hot.

    Attributes
    ----------
    targets : bool
        Whether the array holds targets rather than labels.
    shape : tuple of int
        Shape of a sample's ground truth in the data file, with the extents that the options keep.

    Raises
    ------
    InputError
        The array has another shape or type, or does not fit the images.
    """

    def __init__(self, blocks: SampleArray, name: str, images: Images,
                 options: ArrayOptions) -> None:
        self.blocks, self.name, self.options = blocks, name, options
        image, sample = images.shape[1:], tuple(blocks.shape[1:])
        self.targets = blocks.dtype.kind == "f"
        extents = self._extents(sample, image)
        if (blocks.shape[:1] != (images.samples,) or not all(blocks.shape) or extents is None
                or blocks.dtype.kind not in "biuf"):
            raise InputError(
                f"{name} holds {blocks.dtype} of shape {tuple(blocks.shape)}; give "
                f"{images.samples} whole numbers, one per image (labels, or one-hot), or "
                f"floating-point numbers [{images.samples}, outputs] (targets), followed by "
                f"{len(image)} image axes for pixels")
        if math.prod(blocks.shape[:1]) * SAMPLE_BYTES > MOST_BYTES:
            raise InputError(f"{name} holds {blocks.shape[0]:,} samples, but hpcpar data takes at "
                             f"most {MOST_BYTES // SAMPLE_BYTES:,}; give fewer")
        #: Type of labels while they are converted; a sample may have many.
        small = np.can_cast(blocks.dtype, "i4") and options.first_label in (None, 0, 1)
        self._kind = np.dtype("i4" if small else "i8")
        _require_memory(blocks, 2 + self._kind.itemsize, name)
        by_channel = len(sample) == len(extents) + 1 and sample[1:] == extents
        self.one_hot = by_channel and not self.targets and sample[0] > 1
        #: Shape of a sample before the options select its pixels.
        self._whole = ((sample[0] if by_channel else 1,) if self.targets else ()) + extents
        self._kept: tuple[Any, ...] = (..., *options.kept(extents, name))
        self.shape = np.broadcast_to(np.float32(), self._whole)[self._kept].shape

    def _extents(self, sample: tuple[int, ...], image: tuple[int, ...]) -> tuple[int, ...] | None:
        """Extents of the ground truth per pixel of a sample; () without pixels, None if no form of
        ground truth has the sample's axes.
        """
        if not self.targets and sample == image:
            return image
        if not self.targets and len(sample) == len(image) and (
                len(image) > 1 or self.options.labels_stride or self.options.labels_crop):
            return sample
        if len(sample) == len(image) + 1:
            last = not self.targets and sample[-1] == 1 != sample[0] and sample[1:] != image
            return sample[:-1] if last else sample[1:]
        return () if len(sample) < 2 and sample != image else None

    def block(self, samples: slice) -> NDArray[Any]:
        """The ground truth of a block of samples for the data file: classes from 0, or targets.

        Raises
        ------
        InputError
            Targets are not finite, or labels not one-hot.
        """
        if self.targets:
            targets = np.asarray(self.blocks[samples], np.float32)
            targets = targets.reshape(-1, *self._whole)[self._kept]
            if not np.isfinite(targets).all():
                raise InputError(f"{self.name} holds targets that are not finite in float32; "
                                 "fix or leave out those samples")
            return targets
        labels = self._labels(samples)
        ignored = ~self._counts(labels)
        labels -= self.options.first_label or 0
        labels[ignored] = NO_LABEL
        return labels

    def _labels(self, samples: slice) -> NDArray[Any]:
        """Labels in the source's numbering."""
        labels = np.asarray(self.blocks[samples])
        if self.one_hot:
            if (labels > 1).any() or (labels.sum(axis=1) != 1).any() or (labels < 0).any():
                raise InputError(f"{self.name} holds {labels.shape[1]} whole numbers per label "
                                 "that are not one-hot (a single 1, else 0); give one label, or "
                                 "floating-point numbers as targets")
            labels = labels.argmax(axis=1)
        return labels.reshape(len(labels), *self._whole)[self._kept].astype(self._kind)

    def _counts(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Mask of the labels that are not ignored."""
        ignore = self.options.ignore
        return np.full(labels.shape, True) if ignore is None else labels != ignore

    def classes(self, known: int | None) -> int:
        """The number of classes, checked against the labels of all samples.

        Parameters
        ----------
        known : int, optional
            The number of classes, by default the largest label plus one.

        Raises
        ------
        InputError
            Labels are out of range, or seem to start at 1 or to mark ignored pixels.
        """
        low, high, below, first = 2**62, -2**62, -2**62, self.options.first_label
        for samples in _slices(self.blocks):
            labels = self._labels(samples)
            counted, ends = self._counts(labels), np.iinfo(labels.dtype)
            if counted.any():
                low = min(low, int(labels.min(initial=ends.max, where=counted)))
                high = max(high, int(labels.max(initial=ends.min, where=counted)))
            counted &= labels < USUAL_IGNORED
            if counted.any():
                below = max(below, int(labels.max(initial=ends.min, where=counted)))
        if low > high:
            raise InputError(f"{self.name}: every label is the ignored one; drop --ignore, or give "
                             "another label")
        if first is None and low == 1 and known in (None, high):
            raise InputError(f"{self.name} holds labels from 1 to {high}, and classes start at 0; "
                             "renumber them with --first-label 1, or keep a class 0 without "
                             "samples with --first-label 0")
        if known is None and self.shape and high == USUAL_IGNORED and below < high - 1:
            raise InputError(f"{self.name} holds labels up to {below}, and {high}: leave pixels of "
                             f"label {high} out of the loss with --ignore {high}, or keep them as "
                             f"a class with --classes {high + 1}")
        first = first or 0
        if low < first:
            raise InputError(f"{self.name} holds labels from {low} to {high}, but the first class "
                             f"is {first}; leave {low} out of the loss with --ignore {low}, or "
                             "give another --first-label")
        classes = int(high) + 1 - first if known is None else known
        if high >= first + classes:
            raise InputError(f"{self.name} holds labels from {low} to {high}; {classes} classes "
                             f"are numbered {first} to {first + classes - 1}; fix the labels, or "
                             "give the label to ignore with --ignore")
        return classes


def _slices(*arrays: SampleArray) -> Iterator[slice]:
    """Blocks of neighboring samples of at most `BLOCK_BYTES`, or of one larger sample."""
    most = max(math.prod(a.shape[1:]) * max(a.dtype.itemsize, 4) for a in arrays)
    step = max(1, BLOCK_BYTES // most)
    for start in range(0, arrays[0].shape[0], step):
        yield slice(start, min(start + step, arrays[0].shape[0]))


def _stored_type(blocks: SampleArray, name: str) -> np.dtype[Any]:
    """The type of images in the data file. Whole numbers of more than 16 bits are read for it."""
    if blocks.dtype.kind == "f":
        return np.dtype("f4")
    for dtype in IMAGE_TYPES:
        if np.can_cast(blocks.dtype, dtype):
            return dtype
    _require_memory(blocks, 1, name)
    low = high = 0
    for samples in _slices(blocks):
        values = np.asarray(blocks[samples])
        low, high = min(low, int(values.min())), max(high, int(values.max()))
    for dtype in IMAGE_TYPES[:-1]:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    raise InputError(f"{name} holds whole numbers from {low} to {high}, but data files hold 16 "
                     "bits; divide them, or save them as floating-point numbers")


def _require_memory(blocks: SampleArray, more_bytes: int, name: str) -> None:
    """Checks the memory for one sample: as it is read, and more for each of its values."""
    stored_bytes = 0 if isinstance(blocks, np.memmap) else blocks.dtype.itemsize
    require_memory(math.prod(blocks.shape[1:]) * (stored_bytes + more_bytes),
                   f"one sample of {name}", "store smaller samples, or numbers of fewer bytes")


def _chosen_of(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """The chosen samples; all of them without a copy, because one may be large."""
    return values if mask.all() else values[mask]


def write_arrays(path: str, parts: Sequence[tuple[Images, Truth]], source: str,
                 options: ArrayOptions, progress: Progress | None = None) -> None:
    """Write a data file from arrays.

    Parameters
    ----------
    parts : sequence of (Images, Truth)
        The training samples, then the held-out samples if the source separates them.
    source : str
        Origin of the data, which the file records.

    Raises
    ------
    InputError
        The arrays do not fit each other, or the file cannot be written.
    """
    images = parts[0][0]
    classes = _check(parts, options)
    total, done = sum(x.samples for x, _ in parts), 0
    require_room(path, total, images.shape, images.dtype.itemsize)
    statistics = ChannelStatistics(images.shape[0])
    with replacing(path, "data file") as f:
        for (x, y), chosen in zip(parts, _chosen(parts, options), strict=True):
            splits = [(create_split(f, prefix, int(mask.sum()), x.shape, x.dtype, y.shape,
                                    "f4" if y.targets else "i8"), mask)
                      for prefix, mask in chosen.items() if mask.any()]
            for block in _slices(x.blocks, y.blocks):
                pixels, known = x.block(block), y.block(block)
                for split, mask in splits:
                    at = slice(int(mask[:block.start].sum()), int(mask[:block.stop].sum()))
                    split.images[at] = _chosen_of(pixels, mask[block])
                    split.truth[at] = _chosen_of(known, mask[block])
                if x.dtype.kind != "f" and "" in chosen:
                    statistics.add(_chosen_of(pixels, chosen[""][block]))
                done += len(pixels)
                if progress:
                    progress(done, total)
        f.attrs["source"] = source
        f.attrs.update(statistics.mean_and_scale())
        if classes is not None:
            f.attrs["classes"] = classes
        if options.ignore is not None:
            f.attrs["ignore_label"] = NO_LABEL


def _check(parts: Sequence[tuple[Images, Truth]], options: ArrayOptions) -> int | None:
    """Check the parts against each other and the options; returns the number of classes."""
    images, truth = parts[0]
    for x, y in parts[1:]:
        if options.test_fraction is not None:
            raise InputError(f"{x.name} is the held-out part; leave out --test-fraction")
        if (x.shape, x.dtype, y.targets, y.shape) != (images.shape, images.dtype, truth.targets,
                                                      truth.shape):
            raise InputError(f"{x.name} has images {shape_text(x.shape)} {x.dtype}, {images.name} "
                             f"{shape_text(images.shape)} {images.dtype}, or the ground truth "
                             "differs; make them alike")
    if not truth.targets:
        classes = truth.classes(options.classes)
        for _, y in parts[1:]:
            y.classes(classes)
        return classes
    given = [name for name in ("classes", "ignore", "first_label") if getattr(options, name)
             is not None]
    if given:
        raise InputError(f"{truth.name} holds targets, which have no classes; leave out "
                         f"--{given[0].replace('_', '-')}, or give labels (whole numbers)")
    return None


def _chosen(parts: Sequence[tuple[Images, Truth]],
            options: ArrayOptions) -> list[dict[str, NDArray[np.bool_]]]:
    """Masks of each part's samples that go to the training ("") and test ("test_") splits."""
    if len(parts) > 1:
        return [{prefix: np.full(x.samples, True)}
                for prefix, (x, _) in zip(("", "test_"), parts, strict=True)]
    images, truth = parts[0]
    strata = np.zeros(images.samples, np.int64)
    if truth.shape == ():
        strata = np.concatenate([truth.block(block) for block in _slices(truth.blocks)])
    test = held_out(strata, options.test_fraction)
    return [{"": ~test, "test_": test}]
