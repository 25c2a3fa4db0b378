"""The GPU backend with PyTorch's convolutions: a second reference, without cuDNN's frontend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import cupy as cp
import numpy as np
import torch
from torch import Tensor

from hpcpar.errors import InputError
from hpcpar.kernels.bfloat16 import is_half, on_copies
from hpcpar.kernels.cudnn_conv import CudnnConv
from hpcpar.kernels.cupy_backend import CupyBackend
from hpcpar.kernels.geometry import ConvSpec
from hpcpar.kernels.interface import Array, MathMode, Tick
from hpcpar.kernels.torch_conv import torch_call


class TorchGpuBackend(CupyBackend):
    """The GPU backend, with PyTorch's convolutions with equal groups on the same arrays.

    They run on the current stream of CuPy. PyTorch allocates their results, so a graph does not
    capture them. See `CupyBackend` for the parameters.

    Raises
    ------
    InputError
        No GPU is usable, or PyTorch cannot use it.
    """

    def __init__(self, local_rank: int = 0, math: MathMode = MathMode.FP32) -> None:
        super().__init__(local_rank=local_rank, math=math)
        try:
            self._on_cuda = _tensor(self.zeros((1,), np.float32)).device.type == "cuda"
        except (RuntimeError, BufferError) as err:
            raise InputError(f"--kernels torch needs PyTorch with CUDA ({err}); install it, or "
                             "use --kernels auto") from err
        self.convolutions = f"PyTorch {torch.__version__}"
        self.bfloat16_kernels |= frozenset(CudnnConv.PREPARED)

    def _use_cudnn(self, *_: Any) -> None:
        """PyTorch calls cuDNN."""

    @contextmanager
    def _by_torch(self) -> Iterator[None]:
        """A context for PyTorch's work: deterministic, on the current stream."""
        stream = cp.cuda.get_current_stream()
        if stream.is_capturing():
            raise RuntimeError("PyTorch's convolutions allocate memory")
        on_stream: AbstractContextManager[Any] = nullcontext()
        if self._on_cuda:
            on_stream = torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, self.device))
        with on_stream, torch.backends.cudnn.flags(
                enabled=True, deterministic=True, allow_tf32=self.math is MathMode.TF32):
            yield

    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        call = torch_call(x.shape, w.shape, out.shape, spec)
        if call is None:
            self._without_torch("conv_forward", x, w, bias, spec, out, tick)
            return
        with self._by_torch():
            y = call.forward(_tensor(x), _tensor(w), None if bias is None else _tensor(bias))
            _tensor(out).copy_(y)
        _done(tick)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        call = torch_call(dx.shape, w.shape, dy.shape, spec)
        if call is None:
            self._without_torch("conv_backward_data", dy, w, spec, dx, tick)
            return
        with self._by_torch():
            _tensor(dx).copy_(call.backward_data(_tensor(dy), _tensor(w)))
        _done(tick)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        call = torch_call(x.shape, dw.shape, dy.shape, spec)
        if call is None:
            self._without_torch("conv_backward_weight", x, dy, spec, dw, dbias, tick)
            return
        with self._by_torch():
            gradient, _ = call.backward_weight(_tensor(x), _tensor(dy), dw.shape, False)
            _tensor(dw).copy_(gradient)
        if dbias is not None:
            self.sum_samples(dy, dbias)
        _done(tick)

    def _without_torch(self, kernel: str, *args: Any) -> None:
        method = getattr(super(), kernel)
        if is_half(args[0]):
            on_copies(self, kernel, method, *args)
        else:
            method(*args)


def _tensor(array: Array) -> Tensor:
    """The same memory as a tensor, for PyTorch's current stream."""
    if is_half(array):  # CuPy's bfloat16 is not PyTorch's
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    tensor: Tensor = torch.from_dlpack(array)
    return tensor


def _done(tick: Tick | None) -> None:
    if tick is not None:
        tick()
