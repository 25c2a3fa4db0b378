"""As much of cuDNN's Python interface as the package uses, computed with NumPy.

Names, arguments and refusals follow nvidia-cudnn-frontend. Pointers are addresses in this
process. Only the items of the strided tensors are read and written.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import ml_dtypes
import numpy as np

_ALIGNMENT_BYTES = 16


class cudnnGraphNotSupportedError(Exception):
    """No engine supports the graph."""


class data_type(Enum):
    NOT_SET = auto()
    FLOAT = auto()
    BFLOAT16 = auto()


_TYPES = {data_type.FLOAT: np.dtype(np.float32),
          data_type.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


class heur_mode(Enum):
    A = auto()
    FALLBACK = auto()


class numerical_note(Enum):
    TENSOR_CORE = auto()
    DOWN_CONVERT_INPUTS = auto()
    REDUCED_PRECISION_REDUCTION = auto()
    NONDETERMINISTIC = auto()


_streams: dict[int, int] = {}


def backend_version() -> int:
    return 92600


def create_handle() -> int:
    handle = len(_streams) + 1
    _streams[handle] = 0
    return handle


def set_stream(handle: int, stream: int) -> None:
    _streams[handle] = stream


def get_stream(handle: int) -> int:
    return _streams[handle]


class _Tensor:
    """A tensor of a graph; as in the library, each setter returns the tensor."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), uid: int = -1,
                 kind: data_type = data_type.FLOAT) -> None:
        self.dim, self.stride, self.uid, self.kind = tuple(dim), tuple(stride), uid, kind
        self.is_output = False

    def set_output(self, is_output: bool) -> _Tensor:
        self.is_output = is_output
        return self

    def set_uid(self, uid: int) -> _Tensor:
        self.uid = uid
        return self

    def set_dim(self, dim: list[int]) -> _Tensor:
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride: list[int]) -> _Tensor:
        self.stride = tuple(stride)
        return self

    def set_data_type(self, kind: data_type) -> _Tensor:
        self.kind = kind
        return self

    def array(self, pointer: int) -> np.ndarray:
        """The tensor at an address, which like a GPU's vectors must be aligned."""
        if pointer % _ALIGNMENT_BYTES:
            raise RuntimeError(f"misaligned address {pointer:#x}")
        items = 1 + sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        dtype = _TYPES[self.kind]
        raw = (ctypes.c_byte * (items * dtype.itemsize)).from_address(pointer)
        memory = np.frombuffer(raw, dtype)
        steps = [step * memory.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(memory, self.dim, steps)

    def check(self) -> None:
        """Positive extents, and no two items at one address."""
        if not self.dim or len(self.dim) != len(self.stride) or min(self.dim + self.stride) < 1:
            raise RuntimeError(f"bad tensor {self.dim} {self.stride}")
        end = 0
        for step, extent in sorted(zip(self.stride, self.dim, strict=True)):
            if extent > 1 and step <= end:
                raise RuntimeError(f"overlapping tensor {self.dim} {self.stride}")
            end += (extent - 1) * step


class pygraph:
    """A graph of one convolution, and a bias behind it."""

    def __init__(self, name: str = "test_graph", io_data_type: data_type = data_type.NOT_SET,
                 intermediate_data_type: data_type = data_type.NOT_SET,
                 compute_data_type: data_type = data_type.NOT_SET, handle: int | None = None,
                 sm_count: int | None = None, sm_version: int | None = None,
                 kernel_cache: Any = None, device_property: Any = None) -> None:
        assert intermediate_data_type is compute_data_type is data_type.FLOAT
        self._kind = io_data_type
        self._operation = ""
        self._image = self._weight = self._loss = _Tensor()
        self._bias: _Tensor | None = None
        self._stage = "new"

    def tensor(self, dim: list[int], stride: list[int],
               data_type: data_type = data_type.NOT_SET, is_virtual: bool = False,
               is_pass_by_value: bool = False, name: str = "", uid: int = -1) -> _Tensor:
        tensor = _Tensor(dim, stride, uid, data_type)
        tensor.check()
        return tensor

    # -- operations --------------------------------------------------------------------------------
    def _convolve(self, operation: str, image: _Tensor, weight: _Tensor, loss: _Tensor,
                  geometry: dict[str, list[int]]) -> None:
        assert not self._operation
        self._operation = operation
        self._image, self._weight, self._loss = image, weight, loss
        assert set(geometry) == {"pre_padding", "post_padding", "stride", "dilation"}
        self._pads = list(zip(geometry["pre_padding"], geometry["post_padding"], strict=True))
        self._stride, self._dilation = geometry["stride"], geometry["dilation"]

    def conv_fprop(self, image: _Tensor, weight: _Tensor, **geometry: list[int]) -> _Tensor:
        self._convolve("fprop", image, weight, _Tensor(), geometry)
        return self._loss

    def conv_dgrad(self, loss: _Tensor, filter: _Tensor, **geometry: list[int]) -> _Tensor:
        self._convolve("dgrad", _Tensor(), filter, loss, geometry)
        return self._image

    def conv_wgrad(self, image: _Tensor, loss: _Tensor, **geometry: list[int]) -> _Tensor:
        self._convolve("wgrad", image, _Tensor(), loss, geometry)
        return self._weight

    def bias(self, input: _Tensor, bias: _Tensor) -> _Tensor:
        assert self._operation == "fprop" and input is self._loss
        self._bias = bias
        self._loss = _Tensor()
        return self._loss

    # -- planning ----------------------------------------------------------------------------------
    def validate(self) -> None:
        self._advance("new", "valid")

    def build_operation_graph(self) -> None:
        self._advance("valid", "operations")
        tensors = [self._image, self._weight, self._loss]
        for tensor in tensors:
            tensor.check()
        images, channels, *extents = self._image.dim
        outputs, inputs, *kernel = self._weight.dim
        if channels % inputs or outputs % (channels // inputs):
            raise RuntimeError(f"{channels} channels, groups of {inputs} -> {outputs}")
        spatial = [(n + before + after - d * (k - 1) - 1) // s + 1
                   for n, k, (before, after), s, d in zip(extents, kernel, self._pads, self._stride,
                                                          self._dilation, strict=True)]
        if min(min(pad) for pad in self._pads) < 0 or min(self._stride + self._dilation) < 1:
            raise RuntimeError("bad geometry")
        if self._loss.dim != (images, outputs, *spatial):
            raise RuntimeError(f"outputs {self._loss.dim}, not {(images, outputs, *spatial)}")
        if self._bias is not None and self._bias.dim != (1, outputs, *(1,) * len(kernel)):
            raise RuntimeError(f"bias {self._bias.dim}")

    def _advance(self, before: str, after: str) -> None:
        assert self._stage == before, f"{after} after {self._stage}"
        self._stage = after

    def create_execution_plans(self, modes: list[heur_mode]) -> None:
        assert modes
        self._advance("operations", "plans")

    def deselect_numeric_notes(self, notes: list[numerical_note]) -> None:
        assert self._stage == "plans" and numerical_note.NONDETERMINISTIC in notes

    def deselect_workspace_greater_than(self, workspace: int) -> None:
        assert self._stage == "plans"
        self._workspace_limit = workspace

    def check_support(self) -> None:
        self._advance("plans", "supported")
        if self.get_workspace_size_plan_at_index(1) > self._workspace_limit:
            raise cudnnGraphNotSupportedError("no engine with so little workspace")
        tensors = [self._image, self._weight, self._loss, *([self._bias] if self._bias else [])]
        if any(tensor.kind is not self._kind for tensor in tensors):
            raise cudnnGraphNotSupportedError("no engine for tensors of two types")

    def get_execution_plan_count(self) -> int:
        return 2

    def build_plan_at_index(self, index: int) -> None:
        """The first plan is one of those left out."""
        if index == 0:
            raise ValueError("plan 0 is excluded by a note filter")
        self._advance("supported", "built")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index == 1
        return 4 * math.prod(self._weight.dim)

    # -- execution ---------------------------------------------------------------------------------
    def execute_plan_at_index(self, variant_pack: dict[int, int], workspace: int, index: int,
                              handle: int | None = None) -> None:
        assert self._stage == "built" and handle in _streams and index == 1
        streams, pack = sys.modules.get("cupy.cuda.streams"), dict(variant_pack)
        if streams is not None:  # with the pretended CuPy: behind the work of the stream
            stream = streams.stream_of(_streams[handle])
            if stream.is_capturing():
                stream.submit(lambda: self._compute(pack, workspace, index))
                return
            stream.flush()
        self._compute(pack, workspace, index)

    def _compute(self, variant_pack: dict[int, int], workspace: int, index: int) -> None:
        pointers = (*variant_pack.values(), workspace)
        assert all(type(pointer) is int and pointer for pointer in pointers)
        ctypes.memset(workspace, 0xFF, self.get_workspace_size_plan_at_index(index))
        written = {"dgrad": self._image, "wgrad": self._weight, "fprop": self._loss}[
            self._operation]
        image, weight, loss = (
            tensor.array(variant_pack[tensor.uid]).astype(np.float64, copy=False)
            if tensor is not written else tensor.array(variant_pack[tensor.uid])
            for tensor in (self._image, self._weight, self._loss))
        groups = image.shape[1] // weight.shape[1]
        padded = np.pad(image if self._operation != "dgrad" else np.zeros(image.shape),
                        [(0, 0), (0, 0), *self._pads])
        sums = np.zeros({"fprop": loss, "dgrad": padded, "wgrad": weight}[self._operation].shape)
        for group, tap in itertools.product(range(groups), np.ndindex(weight.shape[2:])):
            inputs, outputs = (slice(group * n // groups, (group + 1) * n // groups)
                               for n in (image.shape[1], weight.shape[0]))
            read = (slice(None), inputs, *(
                slice(d * u, d * u + (n - 1) * s + 1, s)
                for d, u, n, s in zip(self._dilation, tap, loss.shape[2:], self._stride,
                                      strict=True)))
            filters = (outputs, slice(None), *tap)
            if self._operation == "fprop":
                sums[:, outputs] += np.einsum("nc...,oc->no...", padded[read], weight[filters])
            elif self._operation == "dgrad":
                sums[read] += np.einsum("no...,oc->nc...", loss[:, outputs], weight[filters])
            else:
                flat = (a.reshape(*a.shape[:2], -1) for a in (loss[:, outputs], padded[read]))
                sums[filters] += np.einsum("nop,ncp->oc", *flat)
        if self._operation == "fprop":
            if self._bias is not None:
                sums += self._bias.array(variant_pack[self._bias.uid]).astype(np.float64)
            loss[...] = sums
        elif self._operation == "dgrad":
            image[...] = sums[(..., *(slice(before, before + n) for (before, _), n in zip(
                self._pads, image.shape[2:], strict=True)))]
        else:
            weight[...] = sums
