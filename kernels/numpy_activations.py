"""Activation functions and their gradients, in blocks that stay in the cache."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import flat_blocks
from hpcpar.kernels.numpy_elementwise import masked

#: erf(t) rounds to 1 in float64 for t above the first number; the second is the number of table
#: nodes per unit of t.
_ERF_END, _ERF_NODES = 6, 1024
#: Constants in the tanh approximation of gelu.
_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715


@functools.cache
def _erf_table(dtype: str) -> tuple[Array, Array]:
    """erf and its derivative at the nodes."""
    nodes = [i / _ERF_NODES for i in range(_ERF_END * _ERF_NODES + 1)]
    return (np.array([math.erf(t) for t in nodes], dtype),
            np.array([2 / math.sqrt(math.pi) * math.exp(-t * t) for t in nodes], dtype))


def erf(x: Array) -> Array:
    """The error function, by its Taylor series around the nearest node; 1 for NaN.

    The first omitted term has order 5 and is below 1e-17.
    """
    size = np.fmin(np.abs(x), _ERF_END)
    node = np.rint(size * _ERF_NODES)
    values, slopes = _erf_table(x.dtype.name)
    index = node.astype(np.intp)
    t = node / _ERF_NODES
    d = size - t
    series = 1 + d * (-t + d * ((2 * t * t - 1) / 3 + d * t * (0.5 - t * t / 3)))
    return np.copysign(values[index] + slopes[index] * d * series, x)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which is 0 if exp(-x) overflows."""
    return 1 / (1 + np.exp(-x))


def _normal(x: Array) -> Array:
    """The cumulative distribution function of the normal distribution."""
    return (1 + erf(x * math.sqrt(0.5))) / 2


def _tanh_of_gelu(x: Array) -> Array:
    return np.tanh(_ROOT * x * (1 + _CUBE * x * x))


def _tanh_of_mish(x: Array) -> Array:
    return np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


#: Functions of (x, a, b, out); see `Backend.activation_forward`.
_FORWARD: dict[str, Callable[[Array, float, float, Array], object]] = {
    "relu": lambda x, a, b, y: np.maximum(x, 0, out=y),
    "leaky_relu": lambda x, a, b, y: np.copyto(y, np.where(x > 0, x, a * x)),
    "clip": lambda x, a, b, y: np.minimum(np.maximum(x, a, out=y), b, out=y),
    "sigmoid": lambda x, a, b, y: np.copyto(y, _sigmoid(x)),
    "tanh": lambda x, a, b, y: np.tanh(x, out=y),
    "silu": lambda x, a, b, y: np.multiply(x, _sigmoid(x), out=y),
    "gelu": lambda x, a, b, y: np.multiply(x, (1 + _tanh_of_gelu(x)) / 2 if a else _normal(x),
                                           out=y),
    "elu": lambda x, a, b, y: np.multiply(
        np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))), b, out=y),
    "mish": lambda x, a, b, y: np.multiply(x, _tanh_of_mish(x), out=y),
    "affine": lambda x, a, b, y: np.add(a * x, b, out=y),
}


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_slope(x: Array, by_tanh: float) -> Array:
    if not by_tanh:
        return _normal(x) + x * np.exp(-x * x / 2) * (_ROOT / 2)
    t = _tanh_of_gelu(x)
    return (1 + t + x * (1 - t * t) * (_ROOT * (1 + 3 * _CUBE * x * x))) / 2


def _mish_slope(x: Array) -> Array:
    t = _tanh_of_mish(x)
    return t + x * (1 - t * t) * _sigmoid(x)


#: Functions of (kept, a, b, dy, dx); see `Backend.activation_backward`.
_BACKWARD: dict[str, Callable[[Array, float, float, Array, Array], object]] = {
    "relu": lambda y, a, b, g, d: masked(y > 0, g, d),
    "leaky_relu": lambda y, a, b, g, d: np.copyto(d, np.where(y > 0, g, a * g)),
    "clip": lambda y, a, b, g, d: masked((y > a) & (y < b), g, d),
    "sigmoid": lambda y, a, b, g, d: np.multiply(g, y * (1 - y), out=d),
    "tanh": lambda y, a, b, g, d: np.multiply(g, 1 - y * y, out=d),
    "silu": lambda x, a, b, g, d: np.multiply(g, _silu_slope(x), out=d),
    "gelu": lambda x, a, b, g, d: np.multiply(g, _gelu_slope(x, a), out=d),
    "elu": lambda y, a, b, g, d: np.multiply(g, np.where(y > 0, b, y + a * b), out=d),
    "mish": lambda x, a, b, g, d: np.multiply(g, _mish_slope(x), out=d),
    "affine": lambda _, a, b, g, d: np.multiply(g, a, out=d),
}


def activation_forward(function: str, numbers: tuple[float, float], x: Array, out: Array) -> None:
    compute, (a, b) = _FORWARD[function], numbers
    for block, y in flat_blocks(x, out):
        compute(block, a, b, y)


def activation_backward(function: str, numbers: tuple[float, float], kept: Array, dy: Array,
                        dx: Array) -> None:
    compute, (a, b) = _BACKWARD[function], numbers
    for block, g, d in flat_blocks(kept, dy, dx):
        compute(block, a, b, g, d)
