"""Convolution on a GPU by cuDNN."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.kernels.bfloat16 import BFLOAT16, is_half, on_copies
from hpcpar.kernels.cudnn_graphs import (
    ALIGNMENT_BYTES,
    BIAS_UID,
    TYPES,
    WEIGHT_UID,
    X_UID,
    Y_UID,
    ConvEngine,
    ConvOperation,
    ConvProblem,
    StridedShape,
    build_engine,
    joined_segments,
    read_box,
    without_tensor_cores,
)
from hpcpar.kernels.geometry import ConvSpec, Ints
from hpcpar.kernels.interface import Array, Backend, MathMode, Tick, address

if TYPE_CHECKING:
    from hpcpar.kernels.cupy_conv import CupyConv

#: The limit of the workspace is the card's memory divided by this. With less, the fast engines
#: for VGG-16's convolutions are not available.
WORKSPACE_DIVISOR = 32


@dataclass(frozen=True)
class _Launch:
    """An engine with the addresses of its arrays.

    Attributes
    ----------
    pointers
        Addresses by identifier of the tensor.
    items
        Number of items that the engine writes.
    copies
        Aligned copies of unaligned views, which must live as long as the launch.
    written, result
        The copy that the engine writes, and the view to copy it to afterwards; None without one.
    gradient
        The float32 weight gradient that a bfloat16 engine writes to the workspace in bfloat16.
    """

    engine: ConvEngine
    pointers: dict[int, int]
    items: int
    copies: tuple[Array, ...] = ()
    written: Array | None = None
    result: Array | None = None
    gradient: Array | None = None


#: The tensor that each operation writes.
_WRITTEN_UIDS = {
    ConvOperation.FORWARD: Y_UID,
    ConvOperation.DATA: X_UID,
    ConvOperation.WEIGHT: WEIGHT_UID,
}


class CudnnConv:
    """The convolution kernels, one cuDNN graph per shape, all on one stream.

    An array whose address is not a multiple of `ALIGNMENT_BYTES`, such as a box inside a larger
    array, is replaced by an aligned copy. The launches of a call are kept for the next call on the
    same memory. Deterministic engines in full precision are slow for some 1 x 1 kernels; there
    `fallback` multiplies matrices instead.

    On bfloat16 arrays, engines add in float32 and round each result once, also the weight gradient,
    which is stored in float32 afterwards. Where there is no engine, they get float32 copies.

    Parameters
    ----------
    cudnn
        The module ``cudnn`` of nvidia-cudnn-frontend.
    backend
        The GPU's other kernels.
    fallback
        Computes types and shapes that cuDNN does not support.
    math
        Precision of float32 products.
    workspace_limit_bytes
        Limit of the workspace of a graph.

    Attributes
    ----------
    unsupported
        The convolutions for which cuDNN has no engine.
    workspace
        Memory for engines, behind that of a bfloat16 weight gradient.
    """

    #: Kernels for `prepare`.
    PREPARED = ("conv_forward", "conv_backward_data", "conv_backward_weight")

    def __init__(self, cudnn: Any, backend: Backend, fallback: CupyConv, math: MathMode,
                 workspace_limit_bytes: int) -> None:
        self.fallback = fallback
        self.math = math
        self.workspace_limit_bytes = workspace_limit_bytes
        self.unsupported: list[ConvProblem] = []
        self._cudnn = cudnn
        self._backend, self._xp = backend, backend.xp
        self._handle = cudnn.create_handle()
        self._stream: int | None = None
        #: None if cuDNN has no engine.
        self._engines: dict[ConvProblem, ConvEngine | None] = {}
        self._calls: dict[Hashable, list[_Launch]] = {}
        #: Stores of weight gradients from today's workspace, by the gradient's memory.
        self._stores: dict[Hashable, Tick] = {}
        self.workspace = self._xp.empty(0, np.uint8)

    @property
    def workspace_bytes(self) -> int:
        """Size of the workspace, which the largest graph so far determines."""
        return int(self.workspace.size)

    def accepts(self, dtype: Any) -> bool:
        """Whether cuDNN supports a type; it does not support float64."""
        return np.dtype(dtype).name in TYPES

    def forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                tick: Tick | None = None) -> None:
        """See `Backend.conv_forward`."""
        if out.size == 0:
            return
        launches = self._launches(ConvOperation.FORWARD, x, w, out, spec, bias)
        if launches is None:
            self._otherwise("conv_forward", x, w, bias, spec, out, tick)
            return
        if sum(launch.items for launch in launches) < out.size:
            out[...] = 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2))
        self._run(launches, tick)

    def backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                      tick: Tick | None = None) -> None:
        """See `Backend.conv_backward_data`."""
        if dx.size == 0:
            return
        launches = None
        exact = without_tensor_cores(dy.dtype, self.math)
        if not exact or not self.fallback.is_faster_to_data(dx, w, dy, spec):
            launches = self._launches(ConvOperation.DATA, dx, w, dy, spec)
        if launches is None:
            self._otherwise("conv_backward_data", dy, w, spec, dx, tick)
            return
        if sum(launch.items for launch in launches) < dx.size:
            dx.fill(0)
        self._run(launches, tick)

    def backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None,
                        tick: Tick | None = None) -> None:
        """See `Backend.conv_backward_weight`."""
        launches = None
        exact = without_tensor_cores(x.dtype, self.math)
        if not exact or not self.fallback.is_faster_to_weight(x, dw, dy, spec):
            launches = self._launches(ConvOperation.WEIGHT, x, dw, dy, spec)
        if launches is None:
            self._otherwise("conv_backward_weight", x, dy, spec, dw, dbias, tick)
            return
        if dbias is not None:
            self._backend.sum_samples(dy, dbias)
        if sum(launch.items for launch in launches) < dw.size:
            dw.fill(0)
        self._run(launches, tick)

    def prepare(self, kernel: str, *args: Any) -> Tick | None:
        """A kernel's engines with arrays that keep their memory; None where the kernel does more
        than call them.
        """
        bias = dbias = None
        if kernel == "conv_forward":
            x, w, bias, spec, y, tick = args
            operation, written, fallback = ConvOperation.FORWARD, y, False
        elif kernel == "conv_backward_data":
            y, w, spec, x, tick = args
            operation, written = ConvOperation.DATA, x
            fallback = self.fallback.is_faster_to_data(x, w, y, spec)
        else:
            x, y, spec, w, dbias, tick = args
            operation, written = ConvOperation.WEIGHT, w
            fallback = self.fallback.is_faster_to_weight(x, w, y, spec)
        if written.size == 0:
            return None
        if fallback and without_tensor_cores(x.dtype, self.math):
            plain = operation is ConvOperation.WEIGHT and dbias is None
            return self.fallback.prepare_weight(x, y, spec, w) if plain else None
        launches = self._launches(operation, x, w, y, spec, bias)
        if launches is None or any(launch.copies for launch in launches) or (
                sum(launch.items for launch in launches) < written.size):
            return None
        if dbias is None:
            return partial(self._run, launches, tick)
        sums = self._backend.bind("sum_samples", y, dbias)

        def run() -> None:
            sums()
            self._run(launches, tick)

        return run

    def _otherwise(self, kernel: str, *args: Any) -> None:
        """A kernel without cuDNN's engines for its type: on float32 copies, or by the fallback."""
        name = kernel.removeprefix("conv_")
        if is_half(args[0]):
            on_copies(self._backend, kernel, getattr(self, name), *args)
        else:
            getattr(self.fallback, name)(*args)

    def _launches(self, operation: ConvOperation, x: Array, w: Array, y: Array, spec: ConvSpec,
                  bias: Array | None = None) -> list[_Launch] | None:
        """The engines of a convolution with their arrays; kept for later calls on the same memory.

        The caller must set the part of the result that no engine writes, where sums are empty.

        Returns
        -------
        list or None
            None if cuDNN does not support the type or a shape.
        """
        if not self.accepts(x.dtype):
            return None
        call = (operation, spec, *map(_memory, (x, w, y)), bias is not None and _memory(bias))
        launches = self._calls.get(call)
        if launches is None:
            launches = self._planned(operation, x, w, y, spec, bias)
            if launches is not None and not any(launch.copies for launch in launches):
                self._calls[call] = launches
        return launches

    def _planned(self, operation: ConvOperation, x: Array, w: Array, y: Array, spec: ConvSpec,
                 bias: Array | None) -> list[_Launch] | None:
        read = read_box(x, w.shape[2:], y, spec) if y.size else None
        if read is None:
            return []
        box, pads = read
        written = _WRITTEN_UIDS[operation]
        launches = []
        for s in joined_segments(spec.segments):
            inputs = (slice(None), slice(s.in_start, s.in_stop), *box)
            outputs = slice(s.out_start, s.out_stop)
            views = {X_UID: x[inputs], WEIGHT_UID: w[outputs], Y_UID: y[:, outputs]}
            gradient = views[WEIGHT_UID] if is_half(x) and written == WEIGHT_UID else None
            arrays = {uid: view if view is gradient else self._aligned(view, uid != written)
                      for uid, view in views.items()}
            shapes = {uid: StridedShape.of(array) for uid, array in arrays.items()}
            if bias is not None:
                views[BIAS_UID] = bias[outputs]
                arrays[BIAS_UID] = self._aligned(self._xp.ascontiguousarray(bias[outputs]), True)
            problem = ConvProblem(operation, shapes[X_UID], shapes[WEIGHT_UID], shapes[Y_UID], pads,
                                  spec.stride, spec.dilation, np.dtype(x.dtype).name,
                                  bias is not None)
            engine = self._engine(problem)
            if engine is None:
                return None
            copies = tuple(array for uid, array in arrays.items()
                           if address(array) != address(views[uid]))
            is_copy = arrays[written] is not views[written]
            launches.append(_Launch(
                engine, {uid: address(array) for uid, array in arrays.items()}, views[written].size,
                copies, arrays[written] if is_copy else None, views[written] if is_copy else None,
                gradient))
        return launches

    def _aligned(self, view: Array, is_input: bool) -> Array:
        """The view if it is aligned, otherwise a new array; an input is copied to it."""
        if address(view) % ALIGNMENT_BYTES == 0:
            return view
        aligned = self._xp.empty(view.shape, view.dtype)
        if is_input:
            self._backend.copy(view, aligned)
        return aligned

    def _engine(self, problem: ConvProblem) -> ConvEngine | None:
        """The engine of a convolution, built on first use; None if there is none."""
        if problem not in self._engines:
            self._engines[problem] = self._built(problem)
        return self._engines[problem]

    def _built(self, problem: ConvProblem) -> ConvEngine | None:
        try:
            engine = build_engine(self._cudnn, problem, self.math, self.workspace_limit_bytes,
                                  handle=self._handle)
        except self._cudnn.cudnnGraphNotSupportedError:
            self.unsupported.append(problem)
            return None
        if engine.workspace_bytes > self.workspace_bytes:
            # Kernels may still use the old buffer. CuPy reuses its memory only for later work on
            # the same stream.
            self.workspace = self._xp.empty(engine.workspace_bytes, np.uint8)
            self._stores.clear()
        return engine

    def _run(self, launches: Sequence[_Launch], tick: Tick | None) -> None:
        """Execute engines one after the other."""
        stream = int(self._xp.cuda.get_current_stream().ptr)
        if self._stream is None:
            self._stream = stream
            self._cudnn.set_stream(handle=self._handle, stream=stream)
        if stream != self._stream:
            raise RuntimeError("convolutions share a workspace, so they must run on one stream")
        workspace = address(self.workspace)
        for launch in launches:
            launch.engine.execute(launch.pointers, workspace, self._handle)
            if launch.result is not None:
                self._backend.copy(launch.written, launch.result)
            if launch.gradient is not None:
                self._store(launch.gradient)
            if tick is not None:
                tick()
        if tick is not None and not launches:
            tick()

    def _store(self, gradient: Array) -> None:
        """Convert a weight gradient from bfloat16 in the workspace to float32."""
        memory = _memory(gradient)
        if memory not in self._stores:
            halves = self.workspace[: gradient.size * BFLOAT16.itemsize].view(BFLOAT16)
            self._stores[memory] = self._backend.bind(
                "copy", halves.reshape(gradient.shape), gradient)
        self._stores[memory]()


def _memory(array: Array) -> tuple[int, Ints, Ints]:
    """Address, shape and strides of an array."""
    return address(array), array.shape, array.strides
