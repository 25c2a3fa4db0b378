"""How much rounding matters to a training: the same serial run with numbers a little off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.layers import Layer
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch, on_host
from hpcpar.runtime.optimizer import SGD
from hpcpar.train.verify_batches import Data

#: Compared tensors of a layer; weights and biases count as one tensor.
QUANTITIES = ("output", "gradient", "weight_gradient", "weight", "running_statistics")
#: The perturbed run's weights and images are off by so many units in the last place (ulps): more
#: than one, as a ReLU's sign or a maximum's place that rounding may turn in a plan shall turn in
#: the perturbed run too.
ULPS = 32
#: Tolerance in parts of the difference that the perturbation makes.
FACTOR = 4.0
#: Least tolerance in ulps: that of sums of very many numbers in another order.
FLOOR_ULPS = 1000
#: For tensors that are zero everywhere.
TINY = 1e-300


class WatchedRun:
    """A training of which every layer's output and gradient are kept."""

    def __init__(self, executor: Executor, data: Data) -> None:
        self.executor, self.data = executor, data
        self.watch = Watch(executor, executor.training)

    def iterate(self, step: int, sgd: SGD) -> float:
        """The loss of a step."""
        return self.executor.iterate(*self.batch(step), step, sgd.rate, sgd.momentum, sgd.decay,
                                     self.data.counted(step))[0]

    def batch(self, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Images and labels of a step."""
        return self.data.batch(step)

    def tensors(self, layer: Layer) -> Iterator[tuple[str, list[NDArray[Any]]]]:
        """The arrays of each quantity of a layer, on the host."""
        for quantity, kept in (("output", self.watch.outputs), ("gradient", self.watch.gradients)):
            if layer.name in kept:
                yield quantity, [kept[layer.name]]
        yield from self.weights(layer)

    def weights(self, layer: Layer) -> Iterator[tuple[str, list[NDArray[Any]]]]:
        """The same of the quantities that stay: weight and bias, and running statistics."""
        p, backend = self.executor.parameters.get(layer.name), self.executor.backend
        if p is not None and layer.has_weights:
            for quantity, flat in (("weight_gradient", p.grad), ("weight", p.flat)):
                yield quantity, [on_host(backend, a) for a in p.split(flat) if a is not None]
        if p is not None and p.buffers is not None:
            yield "running_statistics", [on_host(backend, p.buffers)]


class PerturbedRun(WatchedRun):
    """A training whose weights and images are off by `ULPS`, up or down, before every step."""

    def __init__(self, executor: Executor, data: Data, seed: int) -> None:
        super().__init__(executor, data)
        self._random = np.random.default_rng([seed, 2])

    def batch(self, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
        backend = self.executor.backend
        for p in self.executor.parameters.values():
            backend.to_device(self._moved(on_host(backend, p.flat)), p.flat)
        images, labels = super().batch(step)
        return self._moved(images), labels

    def _moved(self, array: NDArray[Any]) -> NDArray[Any]:
        off = ULPS * np.finfo(array.dtype).eps
        return (array * (1 + self._random.choice((-off, off), array.shape))).astype(array.dtype)


def tolerances(serial: WatchedRun, perturbed: PerturbedRun) -> NDArray[np.float64]:
    """Tolerance of each quantity after a step.

    It is `FACTOR` times the difference of the two runs, in that layer or in the middle of all
    layers: whether a ReLU turns in this layer or in the next is chance.

    Returns
    -------
    numpy.ndarray
        [layers, `QUANTITIES`]; the loss, in the last row, is the caller's.
    """
    network, eps = serial.executor.network, np.finfo(serial.executor.plan.dtype).eps
    noise = np.zeros((len(network.layers), len(QUANTITIES)))
    for i, layer in enumerate(network.layers[:-1]):
        pairs = zip(serial.tensors(layer), perturbed.tensors(layer), strict=True)
        for (quantity, expected), (_, found) in pairs:
            noise[i, QUANTITIES.index(quantity)] = difference(
                list(zip(found, expected, strict=True)), expected)
    noise[~np.isfinite(noise)] = 0
    for column in noise.T:
        some = column[column > 0]
        column[...] = np.maximum(column, np.median(some) if some.size else 0)
    return np.maximum(FACTOR * noise, FLOOR_ULPS * float(eps))


def difference(pieces: list[tuple[np.ndarray, np.ndarray]], whole: list[np.ndarray]) -> float:
    """Euclidean norm of the difference of found from expected pieces, relative to that of the whole
    tensors that they are of.
    """
    if any(found.shape != expected.shape for found, expected in pieces):
        return float("inf")
    return _norm([found - expected for found, expected in pieces]) / max(_norm(whole), TINY)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(a, dtype=np.float64).sum() for a in arrays)))
