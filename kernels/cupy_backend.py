"""The GPU backend: CuPy for some elementwise operations, CUDA C for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy as cp
import numpy as np
from cupyx.scipy import special

from hpcpar.errors import InputError
from hpcpar.kernels import (
    any_array,
    cupy_batchnorm,
    cupy_elementwise,
    cupy_fused,
    cupy_loss,
    cupy_pool,
)
from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.cudnn_conv import WORKSPACE_DIVISOR, CudnnConv
from hpcpar.kernels.cudnn_graphs import ConvProblem
from hpcpar.kernels.cupy_conv import CupyConv
from hpcpar.kernels.cupy_device import select_device, set_matmul_math
from hpcpar.kernels.cupy_elementwise import each
from hpcpar.kernels.cupy_launch import (
    Launcher,
    Launching,
    box_words,
    merge_dims,
    strides,
)
from hpcpar.kernels.cupy_nccl import NcclGroup, library, nccl_version
from hpcpar.kernels.cupy_products import Multiply, multiply_by_cupy, products
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.cupy_streams import CupyStreams
from hpcpar.kernels.cupy_updates import JointUpdates
from hpcpar.kernels.device_group import DeviceGroup
from hpcpar.kernels.geometry import ConvSpec
from hpcpar.kernels.interface import Array, Backend, MathMode, Tick, address
from hpcpar.kernels.numbers import argument

#: Kernels that, on arrays with elements, do nothing but launch kernels of the project.
_LAUNCHED = frozenset((
    "copy", "accumulate", "add", "add_bias", "activation_forward", "activation_backward",
    "channel_moments", "batchnorm_statistics", "batchnorm_running", "batchnorm_forward",
    "channel_moments_backward", "batchnorm_gradients", "batchnorm_backward", "maxpool_forward",
    "maxpool_backward", "lrn_forward", "lrn_backward", "sum_samples"))
#: Kernels of the project that take bfloat16 arrays.
_BFLOAT16_KERNELS = frozenset((
    "copy", "accumulate", "add", "add_bias", "activation_forward", "activation_backward",
    "dropout_mask", "channel_moments", "batchnorm_forward", "channel_moments_backward",
    "batchnorm_backward", "maxpool_forward", "maxpool_backward", "avgpool_forward",
    "avgpool_backward", "lrn_forward", "lrn_backward", "sum_samples"))
#: Kernels that convert, by the types from and to which they do.
_CONVERSIONS = {(BFLOAT16, np.dtype(np.float32)): "widen_box",
                (np.dtype(np.float32), BFLOAT16): "round_box"}


class CupyBackend(Launching, CupyStreams, Backend):
    """Compute kernels on one GPU.

    Parameters
    ----------
    scratch_bytes
        Memory limit for the im2col matrices of a convolution.
    local_rank
        Rank of this process on its node, which selects the GPU.
    math
        Precision of float32 products.

    Attributes
    ----------
    convolutions
        ``cudnn`` and its version, or ``im2col`` if nvidia-cudnn-frontend or cuDNN is missing.
    products
        ``cuBLAS``, or ``CuPy`` if NVIDIA's bindings are missing.

    Raises
    ------
    InputError
        No GPU is usable.
    """

    name = "gpu"
    bfloat16_kernels = _BFLOAT16_KERNELS

    def __init__(self, scratch_bytes: int = 256 * 2**20,
                 local_rank: int = 0, math: MathMode = MathMode.FP32) -> None:
        self.device = select_device(local_rank)
        self.card = cp.cuda.Device(self.device).pci_bus_id
        free_bytes, total_bytes = map(int, cp.cuda.runtime.memGetInfo())
        workspace_bytes = total_bytes // WORKSPACE_DIVISOR
        self.memory_bytes = max(0, free_bytes - scratch_bytes - workspace_bytes)
        super().__init__()
        self._uploads = cp.cuda.Stream(non_blocking=True)
        self.math = math
        set_matmul_math(math)
        multiply, self.products = products(math)
        self._set_up(Launcher(), scratch_bytes, multiply)
        try:
            import cudnn

            cudnn.backend_version()
        except (ImportError, RuntimeError):
            return  # the module or the library is missing
        self._use_cudnn(cudnn, workspace_bytes, math)

    def _set_up(self, launch: Launcher, scratch_bytes: int,
                multiply: Multiply = multiply_by_cupy) -> None:
        self.xp: Any = cp
        self.launch, self._multiply = launch, multiply
        self._joint = JointUpdates(launch)
        self._im2col = CupyConv(launch, scratch_bytes, multiply)
        self._conv: CupyConv | CudnnConv = self._im2col
        self.convolutions = "im2col"
        if multiply is not multiply_by_cupy:
            self.bfloat16_kernels = _BFLOAT16_KERNELS | {"gemm"}

    def _use_cudnn(self, cudnn: Any, workspace_limit_bytes: int, math: MathMode) -> None:
        """Use cuDNN for convolutions, and im2col where cuDNN has no engine."""
        try:
            self._conv = CudnnConv(cudnn, self, self._im2col, math, workspace_limit_bytes)
        except RuntimeError as err:
            reason = " ".join(str(err).split())
            raise InputError(f"--device gpu: cuDNN cannot be used ({reason}); fix its "
                             "installation, or uninstall nvidia-cudnn-frontend") from err
        self.convolutions = f"cudnn {cudnn.backend_version()}"
        self.bfloat16_kernels |= frozenset(CudnnConv.PREPARED)

    @property
    def versions(self) -> dict[str, str]:
        runtime = cp.cuda.runtime
        return {
            "gpu": runtime.getDeviceProperties(self.device)["name"].decode(),
            "cuda": f"{runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}",
            "cupy": cp.__version__,
            "nccl": nccl_version() or "none",
            "convolutions": self.convolutions,
            "products": self.products,
            "math": str(self.math),
        }

    @property
    def unsupported_convolutions(self) -> list[ConvProblem]:
        """Convolutions for which cuDNN has no engine. Those in bfloat16 get float32 copies, and
        im2col computes the others.
        """
        return self._conv.unsupported if isinstance(self._conv, CudnnConv) else []

    @property
    def cautions(self) -> list[str]:
        if self.convolutions == "im2col":
            return ["cuDNN is not installed, so convolutions use the slower im2col; install it "
                    "with: pip install 'hpcpar[gpu]'"]
        out = []
        if self.convolutions.startswith("cudnn 923"):
            out.append("two runs may differ in their last bits: cuDNN 9.23 wrongly calls an engine "
                       "deterministic; install cuDNN 9.24 or newer")
        if count := len(self.unsupported_convolutions):
            out.append(f"{count} convolution shapes use slower kernels, because cuDNN has no "
                       "engine for them")
        return out

    # -- arrays ------------------------------------------------------------------------------------
    def upload(self, host: Array) -> Array:
        if isinstance(host, cp.ndarray):
            return host
        # The calling thread may have another current device and stream.
        with cp.cuda.Device(self.device), self._uploads:
            device = cp.asarray(host)
            self._uploads.synchronize()
        return device

    def to_device(self, host: np.ndarray, out: Array) -> None:
        if out.size == 0:
            return
        if out.flags.c_contiguous:
            out.set(np.ascontiguousarray(host, out.dtype))
        else:
            out[...] = cp.asarray(np.ascontiguousarray(host))
        # A copy from pinned memory is asynchronous, and the caller may change `host` on return.
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

    def enqueue_to_host(self, device: Array, out: np.ndarray) -> None:
        if out.size:
            device.data.copy_to_host_async(address(out), out.nbytes)

    def enqueue_to_device(self, host: np.ndarray, out: Array) -> None:
        if host.size:
            out.data.copy_from_host_async(address(host), host.nbytes)

    def _prepared(self, kernel: str, args: tuple[Any, ...], call: Tick) -> Tick:
        if kernel in _LAUNCHED:
            return self.launch.prepare(call)
        if kernel in CudnnConv.PREPARED and isinstance(self._conv, CudnnConv):
            return self._conv.prepare(kernel, *args) or call
        return call

    def _workspaces(self) -> Any:
        return self._conv.workspace if isinstance(self._conv, CudnnConv) else None

    fuse = cupy_fused.fuse

    def hold(self, seconds: float) -> None:
        runtime = cp.cuda.runtime
        ticks_per_s = 1e3 * runtime.deviceGetAttribute(runtime.cudaDevAttrClockRate, self.device)
        self.launch("hold", np.float32, 1, (int(seconds * ticks_per_s),))

    # -- messages between devices ------------------------------------------------------------------
    def require_groups(self) -> None:
        library()

    def group(self, size: int, rank: int, share: Callable[[bytes], bytes]) -> DeviceGroup:
        return NcclGroup(size, rank, share)

    # -- moving boxes ------------------------------------------------------------------------------
    def pack(self, box: Array, flat: Array) -> None:
        if not self._move("pack", box, box, flat):
            flat.reshape(box.shape)[...] = box

    def unpack(self, flat: Array, box: Array) -> None:
        if not self._move("unpack", box, flat, box):
            box[...] = flat.reshape(box.shape)

    def unpack_add(self, flat: Array, box: Array) -> None:
        if not self._move("unpack_add", box, flat, box):
            cp.add(box, flat.reshape(box.shape), out=box)

    def _move(self, kernel: str, box: Array, source: Array, target: Array) -> bool:
        """Launch a kernel between a box and a flat buffer; False if its type has no kernels."""
        if not self.launch.supports(box.dtype):
            return False
        if box.size:
            shape, (steps,) = merge_dims(box.shape, strides(box))
            self.launch(kernel, box.dtype, box.size, (source, *shape, *steps, target))
        return True

    def copy(self, x: Array, out: Array) -> None:
        conversion = _CONVERSIONS.get((x.dtype, out.dtype))
        if conversion is not None and x.shape == out.shape:
            each(self, conversion, (x, out), (), BFLOAT16)
        elif not self._alike("copy_box", x, out):
            out[...] = x

    def accumulate(self, x: Array, out: Array) -> None:
        self.add(out, x, out)

    def _alike(self, kernel: str, *arrays: Array) -> bool:
        """Launch a kernel on boxes of one shape and type; False if there is none for them."""
        first = arrays[0]
        alike = all((a.shape, a.dtype) == (first.shape, first.dtype) for a in arrays)
        if not alike or not self.launch.supports(first.dtype):
            self.launch.unprepared()
            return False
        each(self, kernel, arrays, ())
        return True

    # -- convolution -------------------------------------------------------------------------------
    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        self._conv.forward(x, w, bias, spec, out, tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        self._conv.backward_data(dy, w, spec, dx, tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        self._conv.backward_weight(x, dy, spec, dw, dbias, tick)

    # -- fully connected ---------------------------------------------------------------------------
    def gemm(self, a: Array, b: Array, out: Array, *, transpose_a: bool = False,
             transpose_b: bool = False, tick: Tick | None = None) -> None:
        if out.size == 0:
            return
        left = a.T if transpose_a else a
        right = b.T if transpose_b else b
        if left.shape[1] == 0:
            out.fill(0)
        else:
            self._multiply(left, right, out)

    def add_bias(self, y: Array, bias: Array) -> None:
        self.add(y, cp.broadcast_to(bias.reshape(-1, *(1,) * (y.ndim - 2)), y.shape), y)

    sum_samples = cupy_batchnorm.sum_samples

    # -- pooling -----------------------------------------------------------------------------------
    maxpool_forward = cupy_pool.maxpool_forward
    maxpool_backward = cupy_pool.maxpool_backward
    avgpool_forward = cupy_pool.avgpool_forward
    avgpool_backward = cupy_pool.avgpool_backward
    global_avgpool_forward = staticmethod(cupy_pool.global_avgpool_forward)
    global_avgpool_backward = staticmethod(cupy_pool.global_avgpool_backward)
    weighted_sums = staticmethod(any_array.weighted_sums)
    global_maxpool_forward = staticmethod(any_array.global_maxpool_forward)

    def global_maxpool_backward(self, dy: Array, argmax: Array, dx: Array) -> None:
        any_array.global_maxpool_backward(cp, dy, argmax, dx)

    # -- batch normalization -----------------------------------------------------------------------
    channel_moments = cupy_batchnorm.channel_moments
    batchnorm_statistics = cupy_batchnorm.batchnorm_statistics
    batchnorm_running = cupy_batchnorm.batchnorm_running
    batchnorm_forward = cupy_batchnorm.batchnorm_forward
    channel_moments_backward = cupy_batchnorm.channel_moments_backward
    batchnorm_gradients = cupy_batchnorm.batchnorm_gradients
    batchnorm_backward = cupy_batchnorm.batchnorm_backward

    # -- local response normalization and elementwise ----------------------------------------------
    lrn_forward = cupy_elementwise.lrn_forward
    lrn_backward = cupy_elementwise.lrn_backward
    erf = staticmethod(special.erf)
    activation_forward = cupy_elementwise.activation_forward
    activation_backward = cupy_elementwise.activation_backward
    dropout_mask = cupy_elementwise.dropout_mask

    def add(self, a: Array, b: Array, out: Array) -> None:
        if not self._alike("add_boxes", a, b, out):
            cp.add(a, b, out=out)

    def scale(self, x: Array, factor: float) -> None:
        cp.multiply(x, factor, out=x)

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        cp.multiply(a, b, out=out)

    image_products = staticmethod(any_array.image_products)

    softmax_cross_entropy = cupy_loss.softmax_cross_entropy
    logistic_cross_entropy = cupy_loss.logistic_cross_entropy
    mean_squared_error = cupy_loss.mean_squared_error

    # -- update ------------------------------------------------------------------------------------
    def together(self) -> AbstractContextManager[Any]:
        return self._joint

    def sgd_update(self, w: Array, grad: Array, velocity: Array | None, rate: float,
                   momentum: float, decay: float) -> None:
        if velocity is None:
            self._update("plain_update", (w, grad), (*argument(rate), float(decay)))
        else:
            self._update("sgd_update", (w, velocity, grad),
                         (*argument(rate), float(momentum), float(decay)))

    def adam_update(self, w: Array, grad: Array, first: Array, second: Array, rate: float,
                    beta1: float, beta2: float, eps: float, step: float, decay: float,
                    decoupled: float = 0.0) -> None:
        fixed = map(float, (beta1, beta2, eps, decay, decoupled))
        self._update("adam_update", (w, first, second, grad),
                     (*argument(rate), *argument(step), *fixed))

    def _update(self, kernel: str, arrays: tuple[Array, ...], numbers: tuple[Any, ...]) -> None:
        if not self._joint.add(kernel, arrays, numbers):
            each(self, kernel, arrays, numbers)

    def nonfinite_search(self, x: Array, outputs: Sequence[Array], found: Array) -> Tick:
        finite = cp.ones((), bool)
        boxes = cp.asarray(np.array([box_words(a) for a in outputs], np.int64))
        args = (finite, boxes, found, len(outputs))

        def search() -> None:
            cp.isfinite(x).all(out=finite)
            self.launch("nonfinite_boxes", x.dtype, len(outputs) * THREADS, args)

        return search
