"""The GPU's kernels: CuPy (cuBLAS, elementwise operations), and CUDA C where CuPy has nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.errors import InputError
from hpcpar.kernels.cupy_conv import CupyConv
from hpcpar.kernels.cupy_launch import Launcher, merge_dims, strides, view
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array, Backend, ConvSpec, PoolSpec, Tick

#: Where launchers put a process's rank on its node. mpirun's own come first: inside a Slurm job its processes also see
#: the SLURM_LOCALID of the batch script, which is 0 for all of them.
LOCAL_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)


def local_rank(environ: Mapping[str, str]) -> int:
    """The rank of this process on its node as its launcher tells, 0 if none does."""
    for name in LOCAL_RANK_VARIABLES:
        value = environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0


def _select_device(environ: Mapping[str, str]) -> int:
    """Make this process use one of the visible GPUs, by its rank on the node, and check that the CUDA libraries work.

    Raises
    ------
    InputError
        No GPU is visible, or a CUDA library is missing.
    """
    try:
        count = cp.cuda.runtime.getDeviceCount() if cp.cuda.is_available() else 0
    except cp.cuda.runtime.CUDARuntimeError:
        count = 0
    if count == 0:
        raise InputError("--device gpu: no GPU is visible to this process; run on a node with a GPU, or use --device cpu")
    device = local_rank(environ) % count
    try:
        cp.cuda.Device(device).use()
        # The first use loads the compiler and cuBLAS; better here than in the middle of a run.
        probe = cp.ones((2, 3), np.float32)
        float(cp.matmul(probe, probe.T + 1)[0, 0])
    except (ImportError, RuntimeError, OSError, MemoryError, cp.cuda.compiler.CompileException) as err:
        reason = " ".join(str(err).split()) or type(err).__name__
        raise InputError(f"--device gpu: GPU {device} cannot be used ({reason}); mend the CUDA installation, or use --device cpu") from err
    return device


def _contiguous(array: Array, dtype: Any) -> Array:
    """A small array as a kernel without strides takes it; copied (also from the host) only where it must be."""
    return cp.ascontiguousarray(cp.asarray(array, dtype))


class CupyBackend(Backend):
    """Compute kernels on one GPU, on the current stream.

    Parameters
    ----------
    scratch_bytes
        Most memory for the lowered matrices of a convolution.
    environ
        Where to look for the rank on the node; the process's environment if omitted.

    Raises
    ------
    InputError
        No usable GPU.
    """

    name = "gpu"

    def __init__(self, scratch_bytes: int = 256 * 2**20, environ: Mapping[str, str] | None = None) -> None:
        self.device = _select_device(os.environ if environ is None else environ)
        self._set_up(Launcher(), scratch_bytes)

    def _set_up(self, launch: Launcher, scratch_bytes: int) -> None:
        self.xp: Any = cp
        self._launch = launch
        self._conv = CupyConv(launch, scratch_bytes)

    # -- arrays ---------------------------------------------------------------------------------------------
    def to_device(self, host: np.ndarray, out: Array) -> None:
        if out.size == 0:
            return
        if out.flags.c_contiguous:
            out.set(np.ascontiguousarray(host, out.dtype))
        else:
            out[...] = cp.asarray(np.ascontiguousarray(host))
        # A copy from pinned memory may still run: the caller is free to change `host` only after it.
        cp.cuda.get_current_stream().synchronize()

    def to_host(self, device: Array, out: np.ndarray) -> None:
        if out.size == 0:
            return
        contiguous = cp.ascontiguousarray(device)
        if out.flags.c_contiguous:
            cp.asnumpy(contiguous, out=out)
        else:
            out[...] = cp.asnumpy(contiguous)
        cp.cuda.get_current_stream().synchronize()

    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        if items == 0:
            return np.empty(0, dtype)
        memory = cp.cuda.alloc_pinned_memory(items * np.dtype(dtype).itemsize)
        return np.frombuffer(memory, dtype, items)

    def synchronize(self) -> None:
        cp.cuda.runtime.deviceSynchronize()

    # -- moving boxes ---------------------------------------------------------------------------------------
    def pack(self, box: Array, flat: Array) -> None:
        if box.size == 0:
            return
        if not self._launch.supports(box.dtype):
            flat.reshape(box.shape)[...] = box
            return
        shape, (steps,) = merge_dims(box.shape, strides(box))
        self._launch("pack", box.dtype, box.size, (box, *shape, *steps, flat))

    def unpack(self, flat: Array, box: Array) -> None:
        if box.size == 0:
            return
        if not self._launch.supports(box.dtype):
            box[...] = flat.reshape(box.shape)
            return
        shape, (steps,) = merge_dims(box.shape, strides(box))
        self._launch("unpack", box.dtype, box.size, (flat, *shape, *steps, box))

    def unpack_add(self, flat: Array, box: Array) -> None:
        if box.size == 0:
            return
        if not self._launch.supports(box.dtype):
            cp.add(box, flat.reshape(box.shape), out=box)
            return
        shape, (steps,) = merge_dims(box.shape, strides(box))
        self._launch("unpack_add", box.dtype, box.size, (flat, *shape, *steps, box))

    # -- convolution ----------------------------------------------------------------------------------------
    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array, tick: Tick | None = None) -> None:
        self._conv.forward(x, w, bias, spec, out, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array, tick: Tick | None = None) -> None:
        self._conv.backward_data(dy, w, spec, dx, tick)

    def conv_backward_weight(
        self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, tick: Tick | None = None
    ) -> None:
        self._conv.backward_weight(x, dy, spec, dw, dbias, tick)

    # -- fully connected ------------------------------------------------------------------------------------
    def gemm(self, a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
        if out.size == 0:
            return
        left = a.T if transpose_a else a
        right = b.T if transpose_b else b
        if left.shape[1] == 0:
            out.fill(0)
        elif out.flags.c_contiguous:
            cp.matmul(left, right, out=out)
        else:
            out[...] = cp.matmul(left, right)

    def add_bias(self, y: Array, bias: Array) -> None:
        cp.add(y, bias, out=y)

    def sum_samples(self, dy: Array, out: Array) -> None:
        out[...] = dy.sum(axis=0) if len(dy) else 0

    # -- pooling --------------------------------------------------------------------------------------------
    @staticmethod
    def _pool_geometry(x: Array, out: Array, spec: PoolSpec) -> tuple[int, ...]:
        return (*x.shape, *out.shape[2:], *spec.kernel, *spec.stride, spec.pads[0][0], spec.pads[1][0])

    def maxpool_forward(self, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
        self._launch("maxpool_forward", x.dtype, out.size, (*view(x), *view(out), *view(argmax), *self._pool_geometry(x, out, spec)))

    def maxpool_backward(self, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
        args = (*view(dy), *view(argmax), *view(dx), *self._pool_geometry(dx, dy, spec))
        self._launch("maxpool_backward", dx.dtype, dx.size, args)

    def avgpool_forward(self, x: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, out: Array) -> None:
        scales = (_contiguous(scale_h, x.dtype), _contiguous(scale_w, x.dtype))
        self._launch("avgpool_forward", x.dtype, out.size, (*view(x), *scales, *view(out), *self._pool_geometry(x, out, spec)))

    def avgpool_backward(self, dy: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, dx: Array) -> None:
        scales = (_contiguous(scale_h, dx.dtype), _contiguous(scale_w, dx.dtype))
        self._launch("avgpool_backward", dx.dtype, dx.size, (*view(dy), *scales, *view(dx), *self._pool_geometry(dx, dy, spec)))

    # -- normalisation and elementwise ----------------------------------------------------------------------
    def lrn_forward(
        self, x: Array, offset: int, size: int, alpha: float, beta: float, k: float, out: Array, scale: Array
    ) -> None:
        images, channels, height, width = out.shape
        geometry = (images, x.shape[1], channels, height, width, offset, size)
        args = (*view(x), *view(out), *view(scale), *geometry, float(alpha), float(beta), float(k))
        self._launch("lrn_forward", x.dtype, out.size, args)

    def lrn_backward(
        self, x: Array, out: Array, scale: Array, dy: Array, offset: int, size: int, alpha: float, beta: float, dx: Array
    ) -> None:
        images, channels, height, width = dx.shape
        geometry = (images, channels, out.shape[1], height, width, offset, size)
        args = (*view(x), *view(out), *view(scale), *view(dy), *view(dx), *geometry, float(alpha), float(beta))
        self._launch("lrn_backward", x.dtype, dx.size, args)

    def relu_forward(self, x: Array, out: Array) -> None:
        cp.maximum(x, 0, out=out)

    def relu_backward(self, out: Array, dy: Array, dx: Array) -> None:
        if dx.size == 0:
            return
        shape, steps = merge_dims(dx.shape, strides(out), strides(dy), strides(dx))
        self._launch("relu_backward", dx.dtype, dx.size, (out, dy, dx, *shape, *steps[0], *steps[1], *steps[2]))

    def dropout_mask(
        self, key: int, start: tuple[int, ...], shape: tuple[int, ...], extent: tuple[int, ...], rate: float, out: Array
    ) -> None:
        if out.size == 0:
            return
        places = [1] * len(extent)
        for axis in range(len(extent) - 2, -1, -1):
            places[axis] = places[axis + 1] * extent[axis + 1]
        if tuple(out.shape) != tuple(shape):
            # The block flattened or reshaped: its elements in row-major order.
            if out.flags.c_contiguous:
                self.dropout_mask(key, start, shape, extent, rate, out.reshape(shape))
            else:
                block = self.empty(shape, out.dtype)
                self.dropout_mask(key, start, shape, extent, rate, block)
                out[...] = block.reshape(out.shape)
            return
        first = sum(begin * place for begin, place in zip(start, places, strict=True))
        kept = 1.0 / (1.0 - rate) if rate < 1 else 0.0
        box, (out_steps, steps) = merge_dims(shape, strides(out), places)
        args = (out, *box, *out_steps, *steps, first, np.uint64(key), float(rate), kept)
        self._launch("dropout_mask", out.dtype, out.size, args)

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        cp.multiply(a, b, out=out)

    def softmax_cross_entropy(self, x: Array, labels: Array, scale: float, dx: Array) -> tuple[float, int]:
        samples, classes = x.shape
        if x.size == 0:
            return 0.0, 0
        sums = cp.empty((2, samples), np.float64)
        args = (*view(x), _contiguous(labels, np.int64), *view(dx), sums[0], sums[1], samples, classes, float(scale))
        self._launch("softmax_cross_entropy", x.dtype, samples * THREADS, args)
        loss, hits = cp.asnumpy(sums.sum(axis=1))
        return float(loss), int(hits)

    def logistic_cross_entropy(self, x: Array, labels: Array, first_class: int, scale: float, dx: Array) -> float:
        samples, classes = x.shape
        if x.size == 0:
            return 0.0
        sums = cp.empty(samples, np.float64)
        args = (*view(x), _contiguous(labels, np.int64), *view(dx), sums, samples, classes, first_class, float(scale))
        self._launch("logistic_cross_entropy", x.dtype, samples * THREADS, args)
        return float(sums.sum())

    # -- update ---------------------------------------------------------------------------------------------
    def sgd_update(self, w: Array, grad: Array, velocity: Array, rate: float, momentum: float, decay: float) -> None:
        args = (*view(w), *view(grad), *view(velocity), w.size, float(rate), float(momentum), float(decay))
        self._launch("sgd_update", w.dtype, w.size, args)

    def all_finite(self, x: Array) -> bool:
        return x.size == 0 or bool(cp.isfinite(x).all())
