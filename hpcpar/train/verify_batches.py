"""Mini-batches for a verification: from a data file, or random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.augment import Augmentation, Crops
from hpcpar.data.dataset import NO_LABEL, REMEDY
from hpcpar.errors import InputError
from hpcpar.io.hdf5 import open_hdf5
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import image_of
from hpcpar.plan.boxes import local, shape, whole_box
from hpcpar.runtime.executor import Executor
from hpcpar.train.job import open_data


class Data:
    """An executor's part of every mini-batch.

    Parameters
    ----------
    path : str
        A data file; empty for random numbers, which depend on the seed and the sample only.
    order : numpy.ndarray
        Permutation of the samples of a mini-batch. Unless it is the identity, the executor must
        read all samples.

    Raises
    ------
    InputError
        The file is missing, damaged, or does not match the network.
    """

    def __init__(self, executor: Executor, path: str, seed: int, order: np.ndarray,
                 augment: tuple[Augmentation, ...]) -> None:
        self.executor, self.seed, self.order = executor, seed, order
        self._loader = open_data(executor, path, seed, "train", augment) if path else None

    def counted(self, step: int) -> tuple[int, float] | None:
        """Samples of a mini-batch that count in its loss (`Loader.counted`); None for all."""
        if self._loader is None:
            return None
        return self._loader.counted(*divmod(step, self._loader.batches_per_epoch))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Images in the executor's rows and box, and the whole mini-batch's labels or targets."""
        if self._loader is not None:
            images, labels = self._loader.batch(*divmod(step, self._loader.batches_per_epoch))
            normalized = np.empty(images.shape, self._loader.dtype)
            NumpyBackend().normalize(images, self._loader.mean, self._loader.scale, normalized)
            whole = len(normalized) == len(self.order)
            return normalized[self.order] if whole else normalized, labels[self.order]
        e, first = self.executor, step * len(self.order)
        box = e.image_box
        images = np.empty((len(e.image_rows), *shape(box)), e.plan.dtype)
        pixels = local(box, tuple((0, n) for n in e.network.image_shape))
        for i, row in enumerate(e.image_rows if images.size else ()):
            images[i] = _stream(self.seed, 0,
                                first + int(self.order[row])).standard_normal(
                e.network.image_shape)[pixels]
        truth = local(e.truth_box, whole_box(e.network.truth_shape))
        return images, np.stack([_truth(e.network, self.seed, first + int(i))[truth]
                                 for i in self.order])


class SerialData(Data):
    """All mini-batches of a serial run.

    It reads whole samples from the data file itself, not through the loader that the plan's run
    reads its parts with, so that a fault of the loader shows as a difference.
    """

    def __init__(self, executor: Executor, path: str, seed: int, order: np.ndarray,
                 augment: tuple[Augmentation, ...]) -> None:
        super().__init__(executor, path, seed, order, augment)
        if self._loader is None:
            return
        network, file = executor.network, open_hdf5(path, "data file", REMEDY)
        self._images = file["images"]
        self._truth = file["targets" if network.loss.takes_targets else "labels"]
        self._ignored = file.attrs.get("ignore_label")
        self._stored = image_of(self._images.shape[1:])[1:]
        self._crops = Crops(self._stored, network.image_shape[1:], augment, seed,
                            len(self._images))

    def counted(self, step: int) -> tuple[int, float] | None:
        if self._loader is None or self.executor.network.loss.takes_targets:
            return super().counted(step)
        labels = self.batch(step)[1]
        return len(labels), float((labels != NO_LABEL).mean() * len(labels))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        loader, network = self._loader, self.executor.network
        if loader is None:
            return super().batch(step)
        epoch, index = divmod(step, loader.batches_per_epoch)
        chosen = loader.order(epoch)[index * len(self.order):][self.order]
        images = np.empty((len(chosen), *network.image_shape), loader.dtype)
        truth = []
        for image, i in zip(images, chosen, strict=True):
            drawn = self._crops.draw(epoch)[i]
            stored = self._images[i].reshape(-1, *self._stored)
            NumpyBackend().normalize(self._cut(stored, drawn), loader.mean, loader.scale, image)
            known = self._truth[i]
            if network.output_extents:
                signal = known.ndim < len(network.truth_shape)
                known = self._cut(np.expand_dims(known, -2) if signal else known, drawn)
            truth.append(known)
        found = np.stack(truth)
        if found.shape[1:] != network.truth_shape:
            raise InputError(f"data file {loader.path} holds {found.shape[1:]} labels or targets "
                             f"per sample, but the network's loss takes {network.truth_shape}; "
                             f"{REMEDY}")
        return images, found if self._ignored is None else np.where(
            found == self._ignored, NO_LABEL, found)

    def _cut(self, stored: NDArray[Any], drawn: NDArray[np.int64]) -> NDArray[Any]:
        """The crop of an image, or of ground truth per pixel of the image."""
        *starts, flip = drawn.tolist()
        if stored.shape[-len(starts):] != self._stored:
            return stored
        taken = self.executor.network.image_shape[1:]
        window = [slice(a, a + n) for a, n in zip(starts, taken, strict=True)]
        place: tuple[Any, ...] = (..., *window)
        return stored[place][..., ::-1] if flip else stored[place]


def _stream(seed: int, purpose: int, sample: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, sample])


def _truth(network: Network, seed: int, sample: int) -> NDArray[Any]:
    """The label or targets of a sample."""
    rng = _stream(seed, 1, sample)
    if network.loss.takes_targets:
        return rng.standard_normal(network.truth_shape)
    return np.asarray(rng.integers(0, network.classes, network.truth_shape))
