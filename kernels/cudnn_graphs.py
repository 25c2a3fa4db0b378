"""Convolutions as cuDNN sees them: a description that is the key of a cache, and its graph.

The library is an argument (the module ``cudnn`` of nvidia-cudnn-frontend), so nothing here needs a
GPU: `build_graph` also plans for a GPU that is only described.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcpar.kernels.interface import Array, ConvSpec, Ints, MathMode, Pads, Segment

#: Identifiers of the tensors of a graph.
X_UID, WEIGHT_UID, Y_UID, BIAS_UID = 1, 2, 3, 4
#: cuDNN reads and writes vectors: it takes every tensor to start at a multiple of this.
ALIGNMENT_BYTES = 16


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

        An axis of extent 1 gets the stride of a contiguous array: its own has no effect, and
        would only be a further key.
        """
        strides: list[int] = []
        for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
            inner = strides[-1] * array.shape[len(array.shape) - len(strides)] if strides else 1
            strides.append(inner if extent == 1 else stride // array.itemsize)
        return cls(tuple(array.shape), tuple(reversed(strides)))


@dataclass(frozen=True)
class ConvProblem:
    """One convolution; the groups follow from the channels of x and of the weights."""

    operation: ConvOperation
    x: StridedShape
    weight: StridedShape
    y: StridedShape
    pads: Pads
    stride: Ints
    dilation: Ints
    dtype: str
    has_bias: bool = False


def joined_segments(segments: Sequence[Segment]) -> list[Segment]:
    """The segments that each become a graph, without empty ones.

    Groups of one size that follow each other are one segment: cuDNN's grouped convolution.
    """
    filled = [s for s in segments if s.in_start < s.in_stop and s.out_start < s.out_stop]
    sizes = {(s.in_stop - s.in_start, s.out_stop - s.out_start) for s in filled}
    follow = all((s.in_stop, s.out_stop) == (t.in_start, t.out_start)
                 for s, t in itertools.pairwise(filled))
    if len(sizes) != 1 or not follow:
        return filled
    first, last = filled[0], filled[-1]
    return [Segment(first.in_start, last.in_stop, first.out_start, last.out_stop)]


def read_extent(extent: int, kernel: int, outputs: int, stride: int, dilation: int,
                before: int) -> tuple[int, int] | None:
    """The part [0, stop) of an axis of x that is passed to cuDNN, and the padding after it.

    cuDNN derives the number of outputs from both, so rows that no output reads are left out. Equal
    padding on both sides is preferred: more engines support it.

    Returns
    -------
    tuple or None
        (stop, padding after); None if the outputs read padding only.
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
    """The image axes of x that are passed to cuDNN, and their padding; None if nothing is read."""
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
    """A graph, and the engine that computes it: the plan of this index."""

    graph: Any
    index: int

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the engine needs beside the tensors."""
        return int(self.graph.get_workspace_size_plan_at_index(self.index))

    def execute(self, pointers: dict[int, int], workspace: int, handle: Any) -> None:
        """Enqueue the convolution of the tensors at these addresses, by identifier.

        An execution by index takes 25 us of host time, one without 170.
        """
        self.graph.execute_plan_at_index(pointers, workspace, self.index, handle=handle)


def build_engine(cudnn: Any, problem: ConvProblem, math: MathMode, workspace_limit_bytes: int,
                 **device: Any) -> ConvEngine:
    """The engine of a convolution that cuDNN's heuristics rank first.

    The heuristics know the GPU only by its description: ranks with the same GPU and the same cuDNN
    choose the same engine, so replicas of a layer round alike.

    Parameters
    ----------
    cudnn
        The library.
    problem
        The convolution.
    math
        Precision of the products.
    workspace_limit_bytes
        Engines that need more workspace are left out.
    **device
        ``handle`` of the GPU, or ``device_property`` of one that is only described.

    Raises
    ------
    cudnn.cudnnGraphNotSupportedError
        No engine supports the convolution.
    """
    real = {"float32": cudnn.data_type.FLOAT}[problem.dtype]
    graph = cudnn.pygraph(io_data_type=real, intermediate_data_type=real, compute_data_type=real,
                          **device)

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
    barred = [notes.NONDETERMINISTIC]
    if math is MathMode.FP32:
        barred += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    graph.deselect_numeric_notes(barred)
    graph.deselect_workspace_greater_than(workspace_limit_bytes)
    graph.check_support()
    for index in range(graph.get_execution_plan_count()):
        try:
            graph.build_plan_at_index(index)
        except (ValueError, cudnn.cudnnGraphNotSupportedError):
            continue  # left out above, or it does not suit
        return ConvEngine(graph, index)
    raise cudnn.cudnnGraphNotSupportedError("no engine can be built")
