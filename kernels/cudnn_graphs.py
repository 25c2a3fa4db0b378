"""Descriptions of convolutions, which are keys of a cache, and their cuDNN graphs.

The cuDNN module (``cudnn`` of nvidia-cudnn-frontend) is an argument, so this module does not need a
GPU: `build_engine` also plans for a description of a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.geometry import ConvSpec, Ints, Pads, Segment
from hpcpar.kernels.interface import Array, MathMode

#: cuDNN's name of each type that it computes.
TYPES = {"float32": "FLOAT", BFLOAT16.name: "BFLOAT16"}
#: Identifiers of the tensors of a graph.
X_UID, WEIGHT_UID, Y_UID, BIAS_UID = 1, 2, 3, 4
#: cuDNN reads and writes vectors: the address of every tensor must be a multiple of this.
ALIGNMENT_BYTES = 16
#: The same for the workspace, as CUDA allocates memory.
WORKSPACE_ALIGNMENT_BYTES = 256


class ConvOperation(Enum):
    """The three convolutions of training."""

    FORWARD = "fprop"
    DATA = "dgrad"
    WEIGHT = "wgrad"


@dataclass(frozen=True)
class StridedShape:
    """Extents of an array and its strides in elements."""

    dims: Ints
    strides: Ints

    @classmethod
    def of(cls, array: Array) -> StridedShape:
        """The shape of an array.

        An axis of extent 1 gets the stride of a contiguous array: its actual stride has no effect,
        but would lead to different keys.
        """
        strides: list[int] = []
        for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
            inner = strides[-1] * array.shape[len(array.shape) - len(strides)] if strides else 1
            strides.append(inner if extent == 1 else stride // array.itemsize)
        return cls(tuple(array.shape), tuple(reversed(strides)))


@dataclass(frozen=True)
class ConvProblem:
    """A convolution. The channels of x and of the weights determine the number of groups.

    All tensors have the type `dtype`, because cuDNN has no engine for others: in bfloat16, that
    includes the weight gradient and the bias. Sums are float32.
    """

    operation: ConvOperation
    x: StridedShape
    weight: StridedShape
    y: StridedShape
    pads: Pads
    stride: Ints
    dilation: Ints
    dtype: str
    has_bias: bool = False

    @property
    def gradient_bytes(self) -> int:
        """Memory for a weight gradient in bfloat16, which callers want in float32; else 0."""
        if self.operation is not ConvOperation.WEIGHT or self.dtype != BFLOAT16.name:
            return 0
        own_bytes = math.prod(self.weight.dims) * BFLOAT16.itemsize
        return -(-own_bytes // WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES


def joined_segments(segments: Sequence[Segment]) -> list[Segment]:
    """The segments for which to build graphs, without empty ones.

    Adjacent groups of equal size become one segment, for a grouped convolution of cuDNN.
    """
    filled = [s for s in segments if s.in_start < s.in_stop and s.out_start < s.out_stop]
    sizes = {(s.in_stop - s.in_start, s.out_stop - s.out_start) for s in filled}
    adjacent = all((s.in_stop, s.out_stop) == (t.in_start, t.out_start)
                   for s, t in itertools.pairwise(filled))
    if len(sizes) != 1 or not adjacent:
        return filled
    first, last = filled[0], filled[-1]
    return [Segment(first.in_start, last.in_stop, first.out_start, last.out_stop)]


def read_extent(extent: int, kernel: int, outputs: int, stride: int, dilation: int,
                before: int) -> tuple[int, int] | None:
    """The part [0, stop) of an axis of x to pass to cuDNN, and the padding after it.

    Both determine cuDNN's number of outputs, so rows that no output reads are left out. Equal
    padding on both sides is preferred, because more engines support it.

    Returns
    -------
    tuple or None
        (stop, padding after); None if the outputs read only padding.
    """
    window = dilation * (kernel - 1) + 1
    reach = (outputs - 1) * stride + window - before
    if min(extent, reach) <= 0:
        return None
    for after in (before, max(0, reach - extent)):
        if (extent + before + after - window) // stride + 1 == outputs:
            return extent, after
    return reach, 0


def read_box(x: Array, kernel: Ints, y: Array,
             spec: ConvSpec) -> tuple[tuple[slice, ...], Pads] | None:
    """The box of x along its image axes to pass to cuDNN, and the padding; None if it is empty."""
    box, pads = [], []
    for axis, (stride, dilation, pad) in enumerate(
            zip(spec.stride, spec.dilation, spec.pads, strict=True)):
        read = read_extent(x.shape[axis + 2], kernel[axis], y.shape[axis + 2], stride, dilation,
                           pad[0])
        if read is None:
            return None
        box.append(slice(read[0]))
        pads.append((pad[0], read[1]))
    return tuple(box), tuple(pads)


@dataclass(frozen=True)
class ConvEngine:
    """A graph, and the index of the engine (execution plan) that computes it.

    `gradient_bytes` of the workspace are a weight gradient in bfloat16; see `ConvProblem`.
    """

    graph: Any
    index: int
    gradient_bytes: int = 0

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the engine needs in addition to the arrays of the caller."""
        own_bytes = int(self.graph.get_workspace_size_plan_at_index(self.index))
        return self.gradient_bytes + own_bytes

    def execute(self, pointers: dict[int, int], workspace: int, handle: Any) -> None:
        """Enqueue the convolution of the tensors at `pointers`, which are addresses by identifier.

        Execution by index takes 25 us of host time; without an index, it would take 170 us.
        """
        if self.gradient_bytes:
            pointers = {**pointers, WEIGHT_UID: workspace}
        self.graph.execute_plan_at_index(pointers, workspace + self.gradient_bytes, self.index,
                                         handle=handle)


def without_tensor_cores(dtype: Any, mode: MathMode) -> bool:
    """Whether tensor cores would round the factors, and must not."""
    return mode is MathMode.FP32 and np.dtype(dtype) != BFLOAT16


def build_engine(cudnn: Any, problem: ConvProblem, mode: MathMode, workspace_limit_bytes: int,
                 **device: Any) -> ConvEngine:
    """The first engine for a convolution in the order of cuDNN's heuristics.

    The heuristics depend only on the description of the GPU: ranks with the same GPU and the same
    cuDNN choose the same engine, so replicas of a layer have the same rounding errors.

    Parameters
    ----------
    cudnn
        The cuDNN module.
    mode
        Precision of float32 products. Those of bfloat16 numbers are exact.
    workspace_limit_bytes
        Engines that need more workspace are left out.
    **device
        ``handle`` of the GPU, or ``device_property`` with its description.

    Raises
    ------
    cudnn.cudnnGraphNotSupportedError
        No engine supports the convolution.
    """
    real, single = getattr(cudnn.data_type, TYPES[problem.dtype]), cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=real, intermediate_data_type=single,
                          compute_data_type=single, **device)

    def tensor(uid: int, shape: StridedShape) -> Any:
        return graph.tensor(dim=list(shape.dims), stride=list(shape.strides), data_type=real,
                            uid=uid)

    geometry = {
        "pre_padding": [before for before, _ in problem.pads],
        "post_padding": [after for _, after in problem.pads],
        "stride": list(problem.stride),
        "dilation": list(problem.dilation),
    }
    if problem.operation is ConvOperation.FORWARD:
        result = graph.conv_fprop(image=tensor(X_UID, problem.x),
                                  weight=tensor(WEIGHT_UID, problem.weight), **geometry)
        if problem.has_bias:
            outputs, ones = problem.y.dims[1], (1,) * len(problem.stride)
            shape = StridedShape((1, outputs, *ones), (outputs, 1, *ones))
            result = graph.bias(input=result, bias=tensor(BIAS_UID, shape))
        uid, shape = Y_UID, problem.y
    elif problem.operation is ConvOperation.DATA:
        result = graph.conv_dgrad(loss=tensor(Y_UID, problem.y),
                                  filter=tensor(WEIGHT_UID, problem.weight), **geometry)
        uid, shape = X_UID, problem.x
    else:
        result = graph.conv_wgrad(image=tensor(X_UID, problem.x), loss=tensor(Y_UID, problem.y),
                                  **geometry)
        uid, shape = WEIGHT_UID, problem.weight
    result.set_output(True).set_uid(uid).set_data_type(real)
    result.set_dim(list(shape.dims)).set_stride(list(shape.strides))

    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    notes = cudnn.numerical_note
    barred = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
    if without_tensor_cores(problem.dtype, mode):
        barred += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    graph.deselect_numeric_notes(barred)
    graph.deselect_workspace_greater_than(workspace_limit_bytes - problem.gradient_bytes)
    graph.check_support()
    for index in range(graph.get_execution_plan_count()):
        try:
            graph.build_plan_at_index(index)
        except (ValueError, cudnn.cudnnGraphNotSupportedError):
            continue  # deselected above, or not supported
        return ConvEngine(graph, index, problem.gradient_bytes)
    raise cudnn.cudnnGraphNotSupportedError("no engine can be built")
