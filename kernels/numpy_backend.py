"""The CPU backend: NumPy arrays, BLAS through np.matmul."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.kernels import numpy_conv, numpy_elementwise, numpy_lrn, numpy_pool
from hpcpar.kernels.interface import Array, Backend, ConvSpec, PoolSpec, Tick
from hpcpar.kernels.numpy_blocks import Scratch, blas_input, is_blas_matrix


class NumpyBackend(Backend):
    """Compute kernels on the CPU.

    Work arrays are kept between calls, so one instance serves one thread at a time.
    """

    name = "cpu"
    xp: Any = np

    def __init__(self) -> None:
        self._scratch = Scratch()

    # -- arrays ---------------------------------------------------------------------------------------------
    def to_device(self, host: np.ndarray, out: Array) -> None:
        out[...] = host

    def to_host(self, device: Array, out: np.ndarray) -> None:
        out[...] = device

    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        return np.empty(items, dtype)

    def synchronize(self) -> None:
        """Nothing to wait for: every kernel is complete on return."""

    # -- moving boxes ---------------------------------------------------------------------------------------
    def pack(self, box: Array, flat: Array) -> None:
        flat.reshape(box.shape)[...] = box

    def unpack(self, flat: Array, box: Array) -> None:
        box[...] = flat.reshape(box.shape)

    def unpack_add(self, flat: Array, box: Array) -> None:
        box += flat.reshape(box.shape)

    # -- convolution ----------------------------------------------------------------------------------------
    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array, tick: Tick | None = None) -> None:
        numpy_conv.conv_forward(x, w, bias, spec, out, self._scratch, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array, tick: Tick | None = None) -> None:
        numpy_conv.conv_backward_data(dy, w, spec, dx, self._scratch, tick)

    def conv_backward_weight(
        self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, tick: Tick | None = None
    ) -> None:
        numpy_conv.conv_backward_weight(x, dy, spec, dw, dbias, self._scratch, tick)

    # -- fully connected ------------------------------------------------------------------------------------
    def gemm(self, a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
        left, right = blas_input(a.T if transpose_a else a), blas_input(b.T if transpose_b else b)
        if is_blas_matrix(out):
            np.matmul(left, right, out=out)
        else:
            out[...] = left @ right

    def add_bias(self, y: Array, bias: Array) -> None:
        y += bias

    def sum_samples(self, dy: Array, out: Array) -> None:
        np.sum(dy, axis=0, out=out)

    # -- pooling --------------------------------------------------------------------------------------------
    def maxpool_forward(self, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
        numpy_pool.maxpool_forward(x, spec, out, argmax, self._scratch)

    def maxpool_backward(self, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
        numpy_pool.maxpool_backward(dy, argmax, spec, dx)

    def avgpool_forward(self, x: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, out: Array) -> None:
        numpy_pool.avgpool_forward(x, spec, scale_h, scale_w, out, self._scratch)

    def avgpool_backward(self, dy: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, dx: Array) -> None:
        numpy_pool.avgpool_backward(dy, spec, scale_h, scale_w, dx, self._scratch)

    # -- normalisation and elementwise ----------------------------------------------------------------------
    def lrn_forward(
        self, x: Array, offset: int, size: int, alpha: float, beta: float, k: float, out: Array, scale: Array
    ) -> None:
        numpy_lrn.lrn_forward(x, offset, size, alpha, beta, k, out, scale, self._scratch)

    def lrn_backward(
        self, x: Array, out: Array, scale: Array, dy: Array, offset: int, size: int, alpha: float, beta: float, dx: Array
    ) -> None:
        numpy_lrn.lrn_backward(x, out, scale, dy, offset, size, alpha, beta, dx, self._scratch)

    def relu_forward(self, x: Array, out: Array) -> None:
        np.maximum(x, 0, out=out)

    def relu_backward(self, out: Array, dy: Array, dx: Array) -> None:
        numpy_elementwise.relu_backward(out, dy, dx)

    def dropout_mask(
        self, key: int, start: tuple[int, ...], shape: tuple[int, ...], extent: tuple[int, ...], rate: float, out: Array
    ) -> None:
        # `out` may be the block flattened or reshaped: its elements are the block's in row-major order.
        if tuple(out.shape) == tuple(shape):
            numpy_elementwise.dropout_mask(key, start, extent, rate, out, self._scratch)
        else:
            block = np.empty(shape, out.dtype)
            numpy_elementwise.dropout_mask(key, start, extent, rate, block, self._scratch)
            out[...] = block.reshape(out.shape)

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        np.multiply(a, b, out=out)

    def softmax_cross_entropy(self, x: Array, labels: Array, scale: float, dx: Array) -> tuple[float, int]:
        return numpy_elementwise.softmax_cross_entropy(x, labels, scale, dx)

    def logistic_cross_entropy(self, x: Array, labels: Array, first_class: int, scale: float, dx: Array) -> float:
        return numpy_elementwise.logistic_cross_entropy(x, labels, first_class, scale, dx)

    # -- update ---------------------------------------------------------------------------------------------
    def sgd_update(self, w: Array, grad: Array, velocity: Array, rate: float, momentum: float, decay: float) -> None:
        numpy_elementwise.sgd_update(w, grad, velocity, rate, momentum, decay, self._scratch)

    def all_finite(self, x: Array) -> bool:
        return numpy_elementwise.all_finite(x)
