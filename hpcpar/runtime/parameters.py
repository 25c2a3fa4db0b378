"""A layer's weights on a rank: one flat buffer, for one allreduce and one update."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Add, Layer
from hpcpar.plan.boxes import Box, Interval, shape
from hpcpar.plan.layout import Layout, parameters, shards
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan, Synchronization

#: The classifier's initial deviation as a fraction of He's: nearly equal outputs for all classes
#: make the first loss about ln(classes).
CLASSIFIER_SHARE = 0.1


class Parameters:
    """Weights, gradients and optimizer state of a layer's rows [start, stop) and input channels
    `columns`.

    Parameters
    ----------
    reduced : bool
        Several ranks sum the gradient; with sharded synchronization, each updates only its shard.
    updates : bool
        False where another rank, the parameter server, updates.
    grad : array, optional
        Memory for the gradient, inside a bucket.

    Attributes
    ----------
    flat, grad : array
        All items: the rows' weights, then their biases.
    copy : array or None
        `flat` in the type of the plan's activations, for the products of mixed precision.
    state : list of array
        The optimizer's state (a velocity, or two moments) for the items that this rank updates.
    shard : Box or None
        The part that this rank updates, as a box of `matrix`; None for all.
    weight, bias, dweight, dbias : array
        Views of `flat` (or `copy`) and `grad` in the kernels' shapes; biases are None for layers
        without one.
        Where k cuts a reduction, every part holds the bias but only the first adds it: on the
        others `bias` is None.
    buffers : array or None
        [2, rows] running mean and variance of batch normalization.
    """

    def __init__(
        self, network: Network, layer: Layer, plan: Plan, backend: Backend, rank: int, seed: int,
        reduced: bool = False, updates: bool = True, grad: Array = None, training: bool = True,
    ) -> None:
        x, config = network.input_shape(layer), plan.configs[layer.name]
        self.layout: Layout = parameters(network, layer, config)
        self.columns = columns(self.layout, layer.weight_shape(x), rank)
        (self.start, self.stop), (first, last) = self.layout.box(rank)
        rows = self.stop - self.start
        whole = layer.weight_shape(x)
        self.weight_shape: tuple[int, ...] = (rows,) if whole else (0,)
        if len(whole) > 1:
            self.weight_shape = (rows, self.columns[1] - self.columns[0], *whole[2:])
        self.bias_shape: tuple[int, ...] = (rows, *layer.bias_shape(x)[1:])
        self.has_bias = bool(layer.bias_shape(x))
        self.per_row = last - first
        self.backend = backend
        self._count = math.prod(self.weight_shape)
        self.flat = backend.zeros((rows * self.per_row,), plan.dtype)
        self.grad = backend.zeros(self.flat.shape, plan.dtype) if (
            training and grad is None) else grad
        self.copy: Array = None
        if plan.formats.mixed and layer.is_matmul:
            self.copy = backend.zeros(self.flat.shape, plan.formats.item_dtype)
        self.weight, self.bias = self.split(self.flat if self.copy is None else self.copy)
        self.dweight, self.dbias = self.split(self.grad) if training else (None, None)
        if self.layout.holds(rank) and config.coordinate("k", rank):
            self.bias = None
        cut = reduced and plan.synchronization is Synchronization.SHARDED
        self.shard: Box | None = shards(network, layer, config).box(rank) if cut else None
        self.updates = updates and bool(self.flat.size)
        held = shape(self.shard) if self.shard is not None else self.flat.shape
        self.state = [backend.zeros(held, plan.dtype)
                      for _ in (OPTIMIZERS[plan.optimizer].state if self.updates else ())]
        self.buffers: Array = None
        if layer.buffers(x):
            self.buffers = backend.zeros((2, rows), plan.dtype)
            self.buffers[1] = 1
        if self._count:
            host = initial_rows(network, layer, seed, self.start, self.stop, plan.dtype)
            held = host[:, slice(*self.columns)] if len(whole) > 1 else host
            backend.to_device(np.ascontiguousarray(held), self.split(self.flat)[0])

    def split(self, flat: Array) -> tuple[Array, Array | None]:
        """The (weight, bias) views of a flat buffer."""
        return flat[: self._count].reshape(self.weight_shape), flat[
            self._count:].reshape(self.bias_shape) if self.has_bias else None

    def refresh(self) -> None:
        """Copy the weights for products."""
        if self.copy is not None:
            self.backend.copy(self.flat, self.copy)

    def copy_from(self, other: Parameters) -> None:
        """Take the weights and running statistics of the same part of the same layer."""
        self.backend.copy(other.flat, self.flat)
        if self.buffers is not None:
            self.backend.copy(other.buffers, self.buffers)

    def matrix(self, flat: Array) -> Array:
        """A flat buffer as [rows, items per row]. Its matrix rows do not match weight rows, but all
        replicas cut it the same way.
        """
        return flat.reshape(self.stop - self.start, self.per_row)

    def updated(self, flat: Array) -> Array:
        """The part of a flat buffer that this rank updates."""
        if self.shard is None:
            return flat
        (first, last) = self.shard[1]
        return self.matrix(flat)[:, first:last]

    def with_separate_gradient(self) -> Parameters:
        """The same weights with another gradient buffer, for gradients that are added later."""
        out = copy.copy(self)
        out.grad = self.backend.zeros(self.grad.shape, self.grad.dtype)
        out.dweight, out.dbias = out.split(out.grad)
        return out


def columns(layout: Layout, whole: tuple[int, ...], rank: int) -> Interval:
    """The input channels (second axis of the weight) that `rank` holds."""
    if len(whole) < 2:
        return 0, 0
    first, last = layout.box(rank)[1]
    size = math.prod(whole[2:])
    bias = int(layout.axes[1].extent) - whole[1] * size
    return first // size, max(first, last - bias) // size


def initial_scale(network: Network, layer: Layer) -> float:
    """Factor of a layer's initial weights: 0 for a normalization that ends a residual branch, so
    each block starts as its shortcut (Goyal et al. 2017, section 5.1); else 1.
    """
    readers = [network.by_name[name] for name in network.consumers[layer.name]]
    ends = all(isinstance(reader, Add) and reader.inputs[0] == layer.name for reader in readers)
    return 0.0 if layer.statistics and ends else 1.0


def initial_deviation(network: Network, layer: Layer) -> float:
    """Standard deviation of a layer's initial weights: He's, for ReLU networks.

    Dropout scales the values that it keeps, so their mean square grows by 1 / (1 - rate), and the
    next layer's weights need a variance smaller by that factor. The classifier, the last layer with
    weights, has the fraction `CLASSIFIER_SHARE` of the deviation.
    """
    kept = network.by_name[layer.inputs[0]].kept_share
    share = CLASSIFIER_SHARE if layer is network.weighted[-1] else 1.0
    return share * math.sqrt(2.0 * kept / layer.fan(network.input_shape(layer)))


def initial_rows(network: Network, layer: Layer, seed: int, start: int, stop: int,
                 dtype: str) -> NDArray[Any]:
    """Initial rows [start, stop); each has its own random stream, so all plans agree."""
    row = layer.weight_shape(network.input_shape(layer))[1:]
    deviation, scale = initial_deviation(network, layer), initial_scale(network, layer)
    position = network.layers.index(layer)
    out = np.empty((stop - start, *row), dtype)
    for i in range(start, stop):
        stream = np.random.Generator(np.random.Philox(key=[seed, (position << 32) + i]))
        out[i - start] = scale * layer.initial_row(stream, row, deviation)
    return out
