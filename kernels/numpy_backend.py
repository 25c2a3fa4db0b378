"""The CPU backend: NumPy, with BLAS through np.matmul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.kernels import (
    numpy_batchnorm,
    numpy_conv,
    numpy_elementwise,
    numpy_gemm,
    numpy_loss,
    numpy_lrn,
    numpy_pool,
    numpy_update,
)
from hpcpar.kernels.interface import Array, Backend, ConvSpec, PoolSpec, Tick
from hpcpar.kernels.numpy_blocks import Scratch


class NumpyBackend(Backend):
    """Compute kernels on the CPU.

    The instance reuses its work arrays between calls, so it is not thread-safe.
    """

    name = "cpu"
    xp: Any = np

    def __init__(self) -> None:
        self._scratch = Scratch()

    # -- arrays ------------------------------------------------------------------------------------
    def to_device(self, host: np.ndarray, out: Array) -> None:
        out[...] = host

    def to_host(self, device: Array, out: np.ndarray) -> None:
        out[...] = device

    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        return np.empty(items, dtype)

    def synchronize(self) -> None:
        """Return at once: all kernels are complete on return."""

    # -- moving boxes ------------------------------------------------------------------------------
    def pack(self, box: Array, flat: Array) -> None:
        flat.reshape(box.shape)[...] = box

    def unpack(self, flat: Array, box: Array) -> None:
        box[...] = flat.reshape(box.shape)

    def unpack_add(self, flat: Array, box: Array) -> None:
        box += flat.reshape(box.shape)

    def copy(self, x: Array, out: Array) -> None:
        out[...] = x

    def accumulate(self, x: Array, out: Array) -> None:
        out += x

    # -- convolution -------------------------------------------------------------------------------
    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        numpy_conv.conv_forward(x, w, bias, spec, out, self._scratch, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        numpy_conv.conv_backward_data(dy, w, spec, dx, self._scratch, tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        numpy_conv.conv_backward_weight(x, dy, spec, dw, dbias, self._scratch, tick)

    # -- fully connected ---------------------------------------------------------------------------
    def gemm(self, a: Array, b: Array, out: Array, *, transpose_a: bool = False,
             transpose_b: bool = False, tick: Tick | None = None) -> None:
        numpy_gemm.gemm(a.T if transpose_a else a, b.T if transpose_b else b, out, tick)

    def add_bias(self, y: Array, bias: Array) -> None:
        y += bias

    def sum_samples(self, dy: Array, out: Array) -> None:
        np.sum(dy, axis=0, out=out)

    # -- pooling -----------------------------------------------------------------------------------
    def maxpool_forward(self, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
        numpy_pool.maxpool_forward(x, spec, out, argmax, self._scratch)

    def maxpool_backward(self, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
        numpy_pool.maxpool_backward(dy, argmax, spec, dx)

    def avgpool_forward(self, x: Array, spec: PoolSpec, scales: Sequence[Array],
                        out: Array) -> None:
        numpy_pool.avgpool_forward(x, spec, scales, out, self._scratch)

    def avgpool_backward(self, dy: Array, spec: PoolSpec, scales: Sequence[Array],
                         dx: Array) -> None:
        numpy_pool.avgpool_backward(dy, spec, scales, dx, self._scratch)

    def global_avgpool_forward(self, x: Array, out: Array) -> None:
        numpy_pool.global_avgpool_forward(x, out)

    def global_avgpool_backward(self, dy: Array, dx: Array) -> None:
        numpy_pool.global_avgpool_backward(dy, dx)

    # -- batch normalisation -----------------------------------------------------------------------
    def channel_moments(self, x: Array, out: Array) -> None:
        numpy_batchnorm.channel_moments(x, out, self._scratch)

    def batchnorm_statistics(self, moments: Array, count: int, eps: float, mean: Array,
                             inv_std: Array, running: Array | None, momentum: float) -> None:
        numpy_batchnorm.batchnorm_statistics(moments, count, eps, mean, inv_std, running, momentum)

    def batchnorm_running(self, running: Array, eps: float, mean: Array, inv_std: Array) -> None:
        numpy_batchnorm.batchnorm_running(running, eps, mean, inv_std)

    def batchnorm_forward(self, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                          out: Array) -> None:
        numpy_batchnorm.batchnorm_forward(x, mean, inv_std, w, b, out)

    def channel_moments_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array,
                                 out: Array) -> None:
        numpy_batchnorm.channel_moments_backward(x, dy, mean, inv_std, out, self._scratch)

    def batchnorm_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                           sums: Array, count: int, dx: Array) -> None:
        numpy_batchnorm.batchnorm_backward(x, dy, mean, inv_std, w, sums, count, dx, self._scratch)

    # -- local response normalisation and elementwise ----------------------------------------------
    def lrn_forward(self, x: Array, offset: int, size: int, alpha: float, beta: float, k: float,
                    out: Array, scale: Array) -> None:
        numpy_lrn.lrn_forward(x, offset, size, alpha, beta, k, out, scale, self._scratch)

    def lrn_backward(self, x: Array, out: Array, scale: Array, dy: Array, offset: int, size: int,
                     alpha: float, beta: float, dx: Array) -> None:
        numpy_lrn.lrn_backward(x, out, scale, dy, offset, size, alpha, beta, dx, self._scratch)

    def relu_forward(self, x: Array, out: Array) -> None:
        np.maximum(x, 0, out=out)

    def relu_backward(self, out: Array, dy: Array, dx: Array) -> None:
        numpy_elementwise.relu_backward(out, dy, dx)

    def dropout_mask(self, key: int, start: tuple[int, ...], shape: tuple[int, ...],
                     extent: tuple[int, ...], rate: float, out: Array) -> None:
        # `out` may be the flattened block: the same elements in row-major order.
        if tuple(out.shape) == tuple(shape):
            numpy_elementwise.dropout_mask(key, start, extent, rate, out, self._scratch)
        else:
            block = np.empty(shape, out.dtype)
            numpy_elementwise.dropout_mask(key, start, extent, rate, block, self._scratch)
            out[...] = block.reshape(out.shape)

    def add(self, a: Array, b: Array, out: Array) -> None:
        np.add(a, b, out=out)

    def scale(self, x: Array, factor: float) -> None:
        x *= factor

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        np.multiply(a, b, out=out)

    def softmax_cross_entropy(self, x: Array, labels: Array, scale: float,
                              dx: Array) -> tuple[float, int]:
        return numpy_loss.softmax_cross_entropy(x, labels, scale, dx)

    def logistic_cross_entropy(self, x: Array, labels: Array, first_class: int, scale: float,
                               dx: Array) -> float:
        return numpy_loss.logistic_cross_entropy(x, labels, first_class, scale, dx)

    def mean_squared_error(self, x: Array, targets: Array, scale: float, dx: Array) -> float:
        return numpy_loss.mean_squared_error(x, targets, scale, dx)

    # -- update ------------------------------------------------------------------------------------
    def sgd_update(self, w: Array, grad: Array, velocity: Array | None, rate: float,
                   momentum: float, decay: float, tick: Tick | None = None) -> None:
        numpy_update.sgd_update(w, grad, velocity, rate, momentum, decay, self._scratch, tick)

    def adam_update(self, w: Array, grad: Array, first: Array, second: Array, rate: float,
                    beta1: float, beta2: float, eps: float, step: int, decay: float,
                    tick: Tick | None = None) -> None:
        numpy_update.adam_update(w, grad, first, second, rate, beta1, beta2, eps, step, decay,
                                 self._scratch, tick)

    def all_finite(self, x: Array) -> bool:
        return numpy_elementwise.all_finite(x)
