"""Convolutions by cuDNN, on a pretended cuDNN (tests/pretended), against the NumPy backend."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hpcpar.errors import InputError
from hpcpar.kernels import backend as make_backend
from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.cudnn_graphs import (
    ALIGNMENT_BYTES,
    ConvOperation,
    ConvProblem,
    build_engine,
    joined_segments,
    read_extent,
)
from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import MathMode, address
from tests.cuda_support import check as check_view
from tests.cuda_support import make
from tests.cudnn_support import (
    ACCEPTED,
    LIMIT_BYTES,
    NUMPY,
    REFUSED,
    OneStream,
    compare,
    convolution,
)
from tests.kernel_conv_cases import ConvCase, conv_cases, plain_conv
from tests.kernel_support import FIFTY_EXAMPLES, blank, check, random


@pytest.fixture
def built(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are built during a test."""
    graphs: list[Any] = []

    class Counted(library.pygraph):  # type: ignore[name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            graphs.append(self)

    monkeypatch.setattr(library, "pygraph", Counted)
    return graphs


TYPES = pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)


@TYPES
@given(case=conv_cases())
@FIFTY_EXAMPLES
def test_every_geometry(library: ModuleType, dtype: Any, case: ConvCase) -> None:
    conv = convolution(library)
    compare(conv, case, dtype)
    assert conv.fallback.calls == len(conv.unsupported) == 0


@TYPES
@given(case=conv_cases(depthwise=True))
@FIFTY_EXAMPLES
def test_depthwise(library: ModuleType, dtype: Any, case: ConvCase) -> None:
    compare(convolution(library), case, dtype)


@TYPES
@pytest.mark.parametrize("case", [
    pytest.param(plain_conv(2, 3, 8, 35, 11, 4), id="alexnet-conv1"),
    pytest.param(plain_conv(2, 4, 3, 12, 2, 5), id="stride-over-kernel"),
    pytest.param(plain_conv(2, 4, 3, 2, 2, 1, 4), id="outputs-of-padding-only"),
    pytest.param(plain_conv(2, 4, 3, 9, 3, 1, 1, fewer=2), id="inputs-unread"),
    pytest.param(plain_conv(2, 4, 3, 9, 3, 2, 1, fewer=1), id="inputs-unread-strided"),
    pytest.param(plain_conv(1, 3, 4, 6, 3, 1, 1, fewer=2, axes=3), id="volume-inputs-unread"),
    pytest.param(plain_conv(0, 3, 4, 5, 3), id="no-image"),
    pytest.param(plain_conv(2, 0, 4, 5, 3), id="no-channel"),
    pytest.param(plain_conv(2, 3, 0, 5, 3), id="no-filter"),
    pytest.param(plain_conv(2, 3, 4, 5, 3, fewer=3), id="no-output"),
    pytest.param(plain_conv(2, 3, 4, 1, 1, 1, 4, fewer=6), id="reads-padding-only"),
])
def test_edge_cases(library: ModuleType, dtype: Any, case: ConvCase) -> None:
    compare(convolution(library), case, dtype)


@pytest.mark.parametrize(("segments", "graphs"), [
    ((Segment(0, 2, 0, 3), Segment(2, 4, 3, 6)), 1),
    ((Segment(2, 4, 0, 3), Segment(4, 6, 3, 6)), 1),
    ((Segment(0, 2, 0, 1), Segment(2, 4, 1, 6)), 2),
    # one graph, executed twice
    ((Segment(0, 2, 0, 3), Segment(4, 6, 3, 6)), 1),
    ((Segment(0, 2, 0, 3), Segment(2, 4, 3, 3)), 1),
    ((Segment(2, 4, 1, 6),), 1),
    ((), 0),
])
def test_groups(library: ModuleType, built: list[Any], segments: tuple[Segment, ...],
                graphs: int) -> None:
    """Equal groups in order are one graph, others one per size; channels of no group get zeros."""
    spec = ConvSpec((1, 1), (1, 1), ((1, 0), (0, 1)), segments)
    conv = convolution(library)
    if sum(s.out_stop - s.out_start for s in segments) == 6:
        compare(conv, ConvCase(spec, (2, 7, 5, 4), (6, 2, 2, 2), (2, 6, 5, 4)))
        # Forward with and without bias, and two backward.
        assert len(built) == 4 * graphs
    dx = blank(NUMPY, (2, 7, 5, 4), np.float32, 1)
    dy, w = random(0, (2, 6, 5, 4), np.float32), random(1, (6, 2, 2, 2), np.float32)
    conv.backward_data(dy, w, spec, dx)
    outside = np.ones(7, bool)
    for s in segments:
        if s.out_start < s.out_stop:
            outside[s.in_start : s.in_stop] = False
    assert not dx[:, outside].any()
    assert dx[:, ~outside].all()


def test_a_second_call_builds_no_graph(library: ModuleType, built: list[Any]) -> None:
    conv = convolution(library)
    compare(conv, plain_conv(2, 4, 3, 9, 3, 1, 1))
    assert len(built) == 4
    assert conv.workspace_bytes == max(
        graph.get_workspace_size_plan_at_index(1) for graph in built)
    compare(conv, plain_conv(2, 4, 3, 9, 3, 1, 1))
    assert len(built) == 4
    smaller = conv.workspace_bytes
    compare(conv, plain_conv(2, 4, 6, 9, 3, 1, 1))
    assert len(built) == 8
    assert conv.workspace_bytes > smaller


@pytest.mark.parametrize("shift", range(4))
def test_boxes_of_larger_arrays(library: ModuleType, shift: int) -> None:
    """Boxes start at any item; nothing around a result is written."""
    conv = convolution(library)
    case = plain_conv(2, 4, 3, 8, 3, 1, 1)
    big = np.zeros((2, 4, 9, 12), np.float32)
    x, out, dx = big[:, :, 1:, shift : shift + 8], make(case.out, np.float32), make(case.x,
                                                                                  np.float32)
    x[...] = random(0, case.x, np.float32)
    assert (address(x) % ALIGNMENT_BYTES == 0) == (address(big) % 16 == 0 and shift == 0)
    w, dy = random(1, case.w, np.float32), random(2, case.out, np.float32)
    want, want_dx = np.empty(case.out, np.float32), np.empty(case.x, np.float32)
    conv.forward(x, w, None, case.spec, out)
    NUMPY.conv_forward(x, w, None, case.spec, want)
    check_view(out, want)
    conv.backward_data(dy, w, case.spec, dx)
    NUMPY.conv_backward_data(dy, w, case.spec, want_dx)
    check_view(dx, want_dx)


def test_unsupported_shapes_are_shown(library: ModuleType) -> None:
    """The fallback computes what cuDNN has no engine for; the list tells the shapes, once each."""
    conv = convolution(library, limit_bytes=0)
    for _ in range(2):
        compare(conv, plain_conv(2, 4, 3, 9, 3, 1, 1))
    assert conv.fallback.calls == 8
    assert len(conv.unsupported) == 4
    assert {problem.weight.dims for problem in conv.unsupported} == {(3, 4, 3, 3)}
    assert conv.workspace_bytes == 0


def test_float64_is_left_to_the_fallback(library: ModuleType, built: list[Any]) -> None:
    conv = convolution(library)
    assert conv.accepts(np.float32) and conv.accepts(BFLOAT16) and not conv.accepts("float64")
    case = plain_conv(2, 4, 3, 9, 3)
    x, w = random(0, case.x, np.float64), random(1, case.w, np.float64)
    conv.forward(x, w, None, case.spec, np.empty(case.out))
    assert conv.fallback.calls == 1
    assert not built and not conv.unsupported


def test_a_second_call_reads_changed_memory(library: ModuleType, built: list[Any]) -> None:
    """A call keeps its launches, but not the numbers in its arrays."""
    conv, case = convolution(library), plain_conv(2, 4, 3, 9, 3)
    x, w = np.ones(case.x, np.float32), np.ones(case.w, np.float32)
    out = np.empty(case.out, np.float32)
    for scale in (1, 2):
        x[...] = scale
        conv.forward(x, w, None, case.spec, out)
        assert (out == 36 * scale).all()
    assert len(built) == 1 and len(conv._calls) == 1


def test_a_bias_with_gaps_is_reread(library: ModuleType) -> None:
    """Its copy is gone after the call; a bias without gaps is not copied."""
    conv, case = convolution(library), plain_conv(2, 4, 3, 9, 3)
    x, w = np.ones(case.x, np.float32), np.ones(case.w, np.float32)
    out, bias = np.empty(case.out, np.float32), np.zeros(2 * case.w[0], np.float32)
    for scale in (1, 2):
        bias[::2] = scale
        conv.forward(x, w, bias[::2], case.spec, out)
        assert (out == 36 + scale).all() and not conv._calls
    conv.forward(x, w, bias[: case.w[0]], case.spec, out)
    assert len(conv._calls) == 1


def test_a_second_stream_is_refused(library: ModuleType) -> None:
    conv = convolution(library)
    case = plain_conv(2, 4, 3, 9, 3)
    compare(conv, case)
    assert library.get_stream(conv._handle) == 5
    conv._xp.stream.ptr = 6
    with pytest.raises(RuntimeError, match="one stream"):
        compare(conv, case)


def test_the_pretended_library_accepts(library: ModuleType) -> None:
    for operation in ConvOperation:
        build_engine(library, replace(ACCEPTED, operation=operation), MathMode.FP32, LIMIT_BYTES)


@pytest.mark.parametrize("operation", ConvOperation, ids=lambda operation: operation.value)
@pytest.mark.parametrize("problem", REFUSED.values(), ids=REFUSED)
def test_the_pretended_library_refuses(library: ModuleType, problem: ConvProblem,
                                       operation: ConvOperation) -> None:
    """The same as the library (see test_cudnn_deviceless)."""
    with pytest.raises(RuntimeError) as info:
        build_engine(library, replace(problem, operation=operation), MathMode.FP32, LIMIT_BYTES)
    assert info.type is RuntimeError


def test_equal_padding_is_preferred() -> None:
    """A stride of 2 over 224 rows reads no row of the padding after them."""
    assert read_extent(224, 7, 112, 2, 1, 3) == (224, 3)
    assert read_extent(56, 3, 28, 2, 1, 1) == (56, 1)
    assert read_extent(57, 3, 56, 1, 1, 1) == (57, 0)
    assert read_extent(60, 3, 56, 1, 1, 1) == (57, 0)
    assert read_extent(3, 2, 1, 1, 1, 4) is None


def test_consecutive_groups_are_joined() -> None:
    groups = [Segment(i, i + 1, 2 * i, 2 * i + 2) for i in range(1, 4)]
    assert joined_segments(groups) == [Segment(1, 4, 2, 8)]
    assert joined_segments(groups[::-1]) == groups[::-1]


def test_math_modes_are_checked_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="needs a GPU"):
        make_backend("cpu", "tf32")
    with pytest.raises(InputError, match="did you mean 'fp32'"):
        make_backend("cpu", "fp23")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from cupy._core import _routines_linalg

    from hpcpar.kernels.cupy_device import set_matmul_math

    monkeypatch.setenv("CUPY_TF32", "1")
    _routines_linalg.set_compute_type(np.float32, _routines_linalg.COMPUTE_TYPE_TBD)
    set_matmul_math(MathMode.FP32)
    assert cupy._core.get_compute_type(np.float32) == _routines_linalg.COMPUTE_TYPE_FP32


def test_the_backend_names_its_convolutions(library: ModuleType,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels import cupy_backend, cupy_streams

    for module in (cupy_backend, cupy_streams):
        monkeypatch.setattr(module, "cp", OneStream())
    monkeypatch.setattr(cupy_backend, "select_device", lambda local_rank: 0)
    monkeypatch.setattr(cupy_backend, "set_matmul_math", lambda math: None)
    monkeypatch.setattr(cupy_streams, "use_compute_stream", lambda: None)
    # The module cannot be imported.
    monkeypatch.setitem(sys.modules, "cudnn", None)
    without = cupy_backend.CupyBackend()
    assert without.convolutions == "im2col" and "cuDNN is not installed" in without.cautions[0]

    def fail() -> None:
        raise RuntimeError("Unable to find symbol\ncudnnGetVersion")

    # The module is there, and the library is missing; then it does not work.
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=fail))
    assert cupy_backend.CupyBackend().convolutions == "im2col"
    broken = SimpleNamespace(backend_version=lambda: 92600, create_handle=fail)
    monkeypatch.setitem(sys.modules, "cudnn", broken)
    with pytest.raises(InputError, match="cuDNN cannot be used") as info:
        cupy_backend.CupyBackend()
    assert "\n" not in str(info.value)

    monkeypatch.setitem(sys.modules, "cudnn", library)
    gpu = cupy_backend.CupyBackend(math=MathMode.TF32)
    assert gpu.convolutions.startswith("cudnn ")
    assert gpu.unsupported_convolutions == [] and gpu.cautions == []
    monkeypatch.setattr(gpu, "convolutions", "cudnn 92301")
    assert ["9.24" in line for line in gpu.cautions] == [True]
    case = plain_conv(2, 4, 3, 9, 3, 1, 1)
    x, w = random(0, case.x, np.float32), random(1, case.w, np.float32)
    out, want = np.empty((2, *case.out), np.float32)
    gpu.conv_forward(x, w, None, case.spec, out)
    NUMPY.conv_forward(x, w, None, case.spec, want)
    check(out, want)
