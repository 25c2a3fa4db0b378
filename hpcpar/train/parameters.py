"""A layer's weights on a rank: its rows of output channels, in one flat buffer with the bias, for one allreduce and one update."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.layout import parameters
from hpcpar.plan.plan import Plan


class Parameters:
    """Weights, gradients and velocities of rows [start, stop) of a layer.

    Attributes
    ----------
    flat, grad, velocity : array
        All items: the rows' weights, then their biases.
    weight, bias, dweight, dbias : array
        Views of `flat` and `grad` in the kernels' shapes; biases are None for layers without.
    """

    def __init__(self, network: Network, layer: Layer, plan: Plan, backend: Backend, rank: int, seed: int) -> None:
        x = network.input_shape(layer)
        layout = parameters(network, layer, plan.configs[layer.name])
        self.start, self.stop = layout.box(rank)[0]
        rows = self.stop - self.start
        self.weight_shape = (rows, *layer.weight_shape(x)[1:])
        self.has_bias = bool(layer.bias_shape(x))
        count = rows * math.prod(self.weight_shape[1:])
        total = count + (rows if self.has_bias else 0)
        self.flat = backend.zeros((total,), plan.dtype)
        self.grad = backend.zeros((total,), plan.dtype)
        self.velocity = backend.zeros((total,), plan.dtype)
        self.weight, self.bias = self._split(self.flat, count)
        self.dweight, self.dbias = self._split(self.grad, count)
        self.velocity_weight, self.velocity_bias = self._split(self.velocity, count)
        host = initial_rows(seed, network.layers.index(layer), self.start, self.stop, self.weight_shape[1:], plan.dtype)
        backend.to_device(host, self.weight)

    def _split(self, flat: Array, count: int) -> tuple[Array, Array | None]:
        return flat[:count].reshape(self.weight_shape), flat[count:] if self.has_bias else None


def initial_rows(seed: int, position: int, start: int, stop: int, row: tuple[int, ...], dtype: str) -> np.ndarray:
    """Initial weights of some rows: He's normal for ReLU networks, drawn row by row so that every plan starts alike.

    Parameters
    ----------
    position : int
        The layer's place in the network; with `seed` and the row's number it fixes the random stream.
    """
    fan_in = math.prod(row)
    out = np.empty((stop - start, *row), dtype)
    for i in range(start, stop):
        stream = np.random.Generator(np.random.Philox(key=[seed, (position << 32) + i]))
        out[i - start] = stream.standard_normal(row) * math.sqrt(2.0 / fan_in)
    return out
