"""The CPU backend: NumPy, with BLAS through np.matmul."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hpcpar.kernels import (
    any_array,
    numpy_activations,
    numpy_batchnorm,
    numpy_conv,
    numpy_elementwise,
    numpy_gemm,
    numpy_loss,
    numpy_lrn,
    numpy_pool,
    numpy_update,
)
from hpcpar.kernels.bfloat16 import COPIES
from hpcpar.kernels.conv_choice import NUMPY, Choice, chosen
from hpcpar.kernels.interface import Array, Backend, Tick
from hpcpar.kernels.numpy_blocks import Scratch, flat_blocks, ticking
from hpcpar.kernels.streams import Mark


class NumpyBackend(Scratch, Backend):
    """Compute kernels on the CPU. Not thread-safe: an instance is its kernels' scratch memory."""

    name = "cpu"
    xp: Any = np
    #: NumPy itself computes these in float32.
    bfloat16_kernels = COPIES

    @property
    def versions(self) -> dict[str, str]:
        return {"convolutions": "NumPy"}

    @property
    def conv_choice(self) -> Choice:
        return chosen(NUMPY, {})

    # -- arrays ------------------------------------------------------------------------------------
    def upload(self, host: Array) -> Array:
        return host

    def to_device(self, host: np.ndarray, out: Array) -> None:
        out[...] = host

    def to_host(self, device: Array, out: np.ndarray) -> None:
        out[...] = device

    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        return np.empty(items, dtype)

    enqueue_to_host, enqueue_to_device = to_host, to_device

    # -- order of work -----------------------------------------------------------------------------
    def compute_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def communication_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, old: Mark = None) -> Mark:
        return time.perf_counter()

    def follow(self, mark: Mark) -> None:
        """Return immediately: earlier work is done."""

    def reached(self, mark: Mark) -> bool:
        return True

    def times_s(self, marks: Sequence[Mark]) -> np.ndarray:
        return np.array(marks, np.float64)

    def hold(self, seconds: float) -> None:
        """Return immediately: no work waits."""

    def synchronize(self) -> None:
        """Return immediately: earlier work is done."""

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

    # -- layers ------------------------------------------------------------------------------------
    conv_forward = numpy_conv.conv_forward
    conv_backward_data = numpy_conv.conv_backward_data
    conv_backward_weight = numpy_conv.conv_backward_weight

    gemm = staticmethod(numpy_gemm.gemm)

    def add_bias(self, y: Array, bias: Array) -> None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))

    def sum_samples(self, dy: Array, out: Array) -> None:
        np.sum(dy, axis=(0, *range(2, dy.ndim)), out=out)

    maxpool_forward = numpy_pool.maxpool_forward
    maxpool_backward = staticmethod(numpy_pool.maxpool_backward)
    avgpool_forward = numpy_pool.avgpool_forward
    avgpool_backward = numpy_pool.avgpool_backward
    global_avgpool_forward = staticmethod(numpy_pool.global_avgpool_forward)
    global_avgpool_backward = staticmethod(numpy_pool.global_avgpool_backward)
    weighted_sums = staticmethod(any_array.weighted_sums)
    global_maxpool_forward = staticmethod(any_array.global_maxpool_forward)

    def global_maxpool_backward(self, dy: Array, argmax: Array, dx: Array) -> None:
        any_array.global_maxpool_backward(np, dy, argmax, dx)

    channel_moments = numpy_batchnorm.channel_moments
    batchnorm_statistics = staticmethod(numpy_batchnorm.batchnorm_statistics)
    batchnorm_running = staticmethod(numpy_batchnorm.batchnorm_running)
    batchnorm_forward = staticmethod(numpy_batchnorm.batchnorm_forward)
    channel_moments_backward = numpy_batchnorm.channel_moments_backward
    batchnorm_gradients = staticmethod(numpy_batchnorm.batchnorm_gradients)
    batchnorm_backward = numpy_batchnorm.batchnorm_backward

    lrn_forward = numpy_lrn.lrn_forward
    lrn_backward = numpy_lrn.lrn_backward

    erf = staticmethod(numpy_activations.erf)
    activation_forward = staticmethod(numpy_activations.activation_forward)
    activation_backward = staticmethod(numpy_activations.activation_backward)
    dropout_mask = numpy_elementwise.dropout_mask

    def add(self, a: Array, b: Array, out: Array) -> None:
        np.add(a, b, out=out)

    def scale(self, x: Array, factor: float) -> None:
        x *= factor

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        np.multiply(a, b, out=out)

    image_products = staticmethod(any_array.image_products)
    softmax_cross_entropy = staticmethod(numpy_loss.softmax_cross_entropy)
    logistic_cross_entropy = staticmethod(numpy_loss.logistic_cross_entropy)
    mean_squared_error = staticmethod(numpy_loss.mean_squared_error)

    # -- update ------------------------------------------------------------------------------------
    def blocks(self, arrays: tuple[Array, ...], tick: Tick | None) -> Iterator[tuple[Array, ...]]:
        return ticking(flat_blocks(*arrays), tick)

    sgd_update = numpy_update.sgd_update
    adam_update = numpy_update.adam_update
    nonfinite_search = staticmethod(numpy_elementwise.nonfinite_search)
