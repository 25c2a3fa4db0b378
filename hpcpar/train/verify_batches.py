"""Mini-batches for a verification: from a data file, or random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.augment import Augmentation
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.graph import Network
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


def _stream(seed: int, purpose: int, sample: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, sample])


def _truth(network: Network, seed: int, sample: int) -> NDArray[Any]:
    """The label or targets of a sample."""
    rng = _stream(seed, 1, sample)
    if network.loss.takes_targets:
        return rng.standard_normal(network.truth_shape)
    return np.asarray(rng.integers(0, network.classes, network.truth_shape))
