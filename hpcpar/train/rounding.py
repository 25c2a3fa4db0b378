"""Tolerances for rounding errors, from a serial run with slightly perturbed numbers."""

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
#: Perturbation of weights and images, in units in the last place (ulps). It is larger than 1: if
#: rounding can flip the sign of a ReLU's input or move a maximum, the perturbation should, too.
ULPS = 32
#: Tolerance as a multiple of the difference that the perturbation makes.
FACTOR = 4.0
#: Smallest tolerance in ulps: long sums in another order differ by this much.
FLOOR_ULPS = 1000
#: Perturbation and smallest tolerance where activations have 16 bits: the rounding of one number.
#: One rank rounds a sum once, several ranks round each partial sum that they send.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
#: Smallest divisor, for tensors that are zero everywhere.
TINY = 1e-300


class WatchedRun:
    """A training run that keeps the output and gradient of every layer."""

    def __init__(self, executor: Executor, data: Data) -> None:
        self.executor, self.data = executor, data
        self.watch = Watch(executor, executor.training)

    def iterate(self, step: int, sgd: SGD) -> float:
        """Runs a step; returns its loss."""
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
        """The arrays of weight and bias, their gradients, and running statistics."""
        p, backend = self.executor.parameters.get(layer.name), self.executor.backend
        if p is not None and layer.has_weights:
            for quantity, flat in (("weight_gradient", p.grad), ("weight", p.flat)):
                yield quantity, [on_host(backend, a) for a in p.split(flat) if a is not None]
        if p is not None and p.buffers is not None:
            yield "running_statistics", [on_host(backend, p.buffers)]


class PerturbedRun(WatchedRun):
    """A training run that perturbs weights and images by `ULPS`, up or down, before every step."""

    def __init__(self, executor: Executor, data: Data, seed: int) -> None:
        super().__init__(executor, data)
        self._random = np.random.default_rng([seed, 2])

    def batch(self, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
        backend, formats = self.executor.backend, self.executor.plan.formats
        ulps = ULPS * float(np.finfo(formats.dtype).eps)
        shift = ROUNDING.get(formats.item_dtype, ulps)
        for p in self.executor.parameters.values():
            backend.to_device(self._shifted(on_host(backend, p.flat), shift), p.flat)
        images, labels = super().batch(step)
        return self._shifted(images, shift), labels

    def _shifted(self, array: NDArray[Any], shift: float) -> NDArray[Any]:
        return (array * (1 + self._random.choice((-shift, shift), array.shape))).astype(array.dtype)


def tolerances(serial: WatchedRun, perturbed: PerturbedRun) -> NDArray[np.float64]:
    """Tolerance of each quantity after a step.

    It is `FACTOR` times the difference between the two runs in that layer, or the median over all
    layers if that is larger: a ReLU may flip in one layer of one run and in the next of another.

    Returns
    -------
    numpy.ndarray
        [layers, `QUANTITIES`]; the caller adds the loss to the last row.
    """
    network, formats = serial.executor.network, serial.executor.plan.formats
    ulps = FLOOR_ULPS * float(np.finfo(formats.dtype).eps)
    floor = ROUNDING.get(formats.item_dtype, ulps)
    noise = np.zeros((len(network.layers), len(QUANTITIES)))
    for i, layer in enumerate(network.layers[:-1]):
        pairs = zip(serial.tensors(layer), perturbed.tensors(layer), strict=True)
        for (quantity, expected), (_, shifted) in pairs:
            noise[i, QUANTITIES.index(quantity)] = difference(
                list(zip(shifted, expected, strict=True)), expected)
    noise[~np.isfinite(noise)] = 0
    for column in noise.T:
        positive = column[column > 0]
        column[...] = np.maximum(column, np.median(positive) if positive.size else 0)
    return np.maximum(FACTOR * noise, floor)


def difference(pairs: list[tuple[np.ndarray, np.ndarray]], whole: list[np.ndarray]) -> float:
    """Norm of the differences between (actual, expected) pieces, over the norm of the tensors."""
    if any(actual.shape != expected.shape for actual, expected in pairs):
        return float("inf")
    return _norm([actual - expected for actual, expected in pairs]) / max(_norm(whole), TINY)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(a, dtype=np.float64).sum() for a in arrays)))
