"""cuDNN plans every convolution of the networks for GPUs that are only described.

Nothing is executed, so no GPU is needed; nvidia-cudnn-frontend and cuDNN are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

TESTS = Path(__file__).resolve().parents[1]

from hpcpar.kernels.bfloat16 import BFLOAT16  # noqa: E402
from hpcpar.kernels.cudnn_conv import WORKSPACE_DIVISOR, CudnnConv  # noqa: E402
from hpcpar.kernels.cudnn_graphs import (  # noqa: E402
    ConvOperation,
    ConvProblem,
    build_engine,
)
from hpcpar.kernels.geometry import ConvSpec, Segment  # noqa: E402
from hpcpar.kernels.interface import MathMode  # noqa: E402
from hpcpar.kernels.numpy_backend import NumpyBackend  # noqa: E402
from hpcpar.network.builtin import built_in  # noqa: E402
from hpcpar.network.layers import Conv, ConvTranspose  # noqa: E402
from tests.cudnn_support import REFUSED  # noqa: E402
from tests.kernel_conv_cases import ConvCase, conv_cases  # noqa: E402
from tests.kernel_support import FIFTY_EXAMPLES, extents, place  # noqa: E402

cudnn: Any = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed",
                                 exc_type=ImportError)

IMAGES = 32
LIMIT_BYTES = 2**28
#: Precision of products, and type of the arrays.
NUMBERS = pytest.mark.parametrize(("mode", "dtype"), [
    pytest.param(MathMode.FP32, np.float32, id="fp32"),
    pytest.param(MathMode.TF32, np.float32, id="tf32"),
    pytest.param(MathMode.TF32, BFLOAT16, id="amp")])


class DescribedGpu:
    """The library, whose graphs are for a GPU that is described in a file."""

    def __init__(self, name: str) -> None:
        text = Path(__file__).with_name(f"cudnn_{name}.json").read_text(encoding="utf-8")
        self.facts = json.loads(text)
        self.device = cudnn.create_device_properties(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(cudnn, name)

    def create_handle(self) -> None:
        return None

    def pygraph(self, *, handle: None, **options: Any) -> Any:
        # `sm_count`, even of all multiprocessors, would leave out Hopper's engines.
        return cudnn.pygraph(device_property=self.device, sm_version=self.facts["deviceVer"] // 10,
                             **options)


@pytest.fixture(scope="module", params=["h200", "a100"])
def gpu(request: pytest.FixtureRequest) -> DescribedGpu:
    try:
        return DescribedGpu(request.param)
    except RuntimeError as err:
        # Some releases of cuDNN need the driver's library even to plan.
        pytest.skip(f"this cuDNN does not plan without a GPU: {err}")


def plan(gpu: DescribedGpu, mode: MathMode, x: np.ndarray, w: np.ndarray, y: np.ndarray,
         spec: ConvSpec, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[ConvOperation, Any]]:
    """The graphs of a convolution: forward with and without a bias, and backward."""
    conv = CudnnConv(gpu, NumpyBackend(), SimpleNamespace(), mode, limit_bytes)
    bias, gradient = np.zeros(len(w), w.dtype), empty(*w.shape)
    for operation, weight, added in (
            (ConvOperation.FORWARD, w, None), (ConvOperation.FORWARD, w, bias),
            (ConvOperation.DATA, w, None), (ConvOperation.WEIGHT, gradient, None)):
        launches = conv._launches(operation, x, weight, y, spec, added)
        assert launches is not None, f"no engine: {conv.unsupported}"
        for launch in launches:
            assert launch.engine.workspace_bytes <= conv.workspace_bytes <= limit_bytes
            yield operation, launch.engine.graph


def empty(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Reserved memory, never touched."""
    return np.empty(shape, dtype)


def convolutions(name: str, images: int) -> set[tuple[tuple[tuple[int, ...], ...], ConvSpec]]:
    """Shapes of x, w and y, and the geometry. A transposed layer uses the kernels of the
    convolution from its outputs to its inputs.
    """
    network, found = built_in(name), set()
    for layer in network.layers:
        if not isinstance(layer, Conv):
            continue
        shapes = network.input_shape(layer), network.shapes[layer.name]
        (channels, *image), (outputs, *out_image) = (
            shapes[::-1] if isinstance(layer, ConvTranspose) else shapes)
        pads = tuple((p, p) for p in layer.padding)
        per_in, per_out = channels // layer.groups, outputs // layer.groups
        segments = tuple(Segment(g * per_in, (g + 1) * per_in, g * per_out, (g + 1) * per_out)
                         for g in range(layer.groups))
        found.add((((images, channels, *image), (outputs, per_in, *layer.kernel),
                    (images, outputs, *out_image)),
                   ConvSpec(layer.stride, layer.dilation, pads, segments)))
    assert found
    return found


@NUMBERS
@pytest.mark.parametrize(("name", "images"), [("alexnet", IMAGES), ("vgg16", IMAGES),
                                              ("resnet50", IMAGES), ("unet3d", 2)])
def test_networks(gpu: DescribedGpu, name: str, images: int, mode: MathMode, dtype: Any) -> None:
    limit_bytes = gpu.facts["totalGlobalMem"] // WORKSPACE_DIVISOR
    for shapes, spec in convolutions(name, images):
        arrays = (empty(*shape, dtype=dtype) for shape in shapes)
        assert len(list(plan(gpu, mode, *arrays, spec, limit_bytes))) >= 4


# pads, segments, x, w, y
CASES = {
    "first block of rows": (((1, 0), (1, 1)), (), (8, 64, 29, 56), (64, 64, 3, 3), (28, 56)),
    "inner block of rows": (((0, 0), (1, 1)), (), (8, 64, 30, 56), (64, 64, 3, 3), (28, 56)),
    "last block of rows": (((0, 1), (1, 0)), (), (8, 64, 29, 29), (64, 64, 3, 3), (28, 28)),
    "outputs of padding only": (((4, 4), (4, 4)), (), (2, 4, 2, 2), (3, 4, 2, 2), (9, 9)),
    "unequal groups": (((2, 2), (2, 2)), (Segment(0, 48, 0, 100), Segment(48, 96, 100, 256)),
                       (8, 96, 27, 27), (256, 48, 5, 5), (27, 27)),
    "depthwise": (((1, 1), (1, 1)), tuple(Segment(c, c + 1, c, c + 1) for c in range(32)),
                  (8, 32, 28, 28), (32, 1, 3, 3), (28, 28)),
    "one channel": (((1, 1), (1, 1)), (), (8, 1, 28, 28), (1, 1, 3, 3), (28, 28)),
    "odd channels": (((1, 1), (1, 1)), (), (3, 7, 13, 11), (5, 7, 3, 3), (13, 11)),
    "one pixel": (((0, 0), (0, 0)), (), (8, 256, 1, 1), (64, 256, 1, 1), (1, 1)),
    "volume": (((1, 0), (1, 1), (1, 1)), (), (2, 16, 17, 32, 32), (32, 16, 3, 3, 3), (16, 32, 32)),
    "volume in two groups": (((1, 1),) * 3, (Segment(0, 8, 0, 16), Segment(8, 16, 16, 32)),
                             (2, 16, 16, 16, 16), (32, 8, 3, 3, 3), (16, 16, 16)),
}


@NUMBERS
@pytest.mark.parametrize("is_box", [False, True], ids=["whole", "box"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_blocks(gpu: DescribedGpu, case: tuple[Any, ...], is_box: bool, mode: MathMode,
                dtype: Any) -> None:
    """Blocks with halos, as arrays of their own and as aligned boxes of larger arrays."""
    pads, segments, x_shape, w_shape, out_image = case
    axes = len(pads)
    spec = ConvSpec((1,) * axes, (1,) * axes, pads,
                    segments or (Segment(0, x_shape[1], 0, w_shape[0]),))
    arrays = []
    for shape in (x_shape, (x_shape[0], w_shape[0], *out_image)):
        larger = empty(*shape[:2], *(extent + 4 * is_box for extent in shape[2:]), dtype=dtype)
        arrays.append(larger[tuple(slice(extent) for extent in shape)])
    x, y = arrays
    assert list(plan(gpu, mode, x, empty(*w_shape, dtype=dtype), y, spec))


@NUMBERS
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [2, 3])
def test_strides_and_dilation(gpu: DescribedGpu, stride: int, dilation: int, mode: MathMode,
                              dtype: Any) -> None:
    spec = ConvSpec((stride,) * 2, (dilation,) * 2, ((1, 1), (0, 1)), (Segment(0, 16, 0, 32),))
    image = extents((40, 40), (3, 3), spec.stride, spec.dilation, spec.pads)
    shapes = (4, 16, 40, 40), (32, 16, 3, 3), (4, 32, *image)
    arrays = (empty(*shape, dtype=dtype) for shape in shapes)
    assert list(plan(gpu, mode, *arrays, spec))


@NUMBERS
@given(case=conv_cases())
@FIFTY_EXAMPLES
def test_every_geometry(gpu: DescribedGpu, mode: MathMode, dtype: Any, case: ConvCase) -> None:
    """The cases of all backends, with gaps between items and with axes in any order."""
    host = SimpleNamespace(xp=np)
    x, y = (place(host, np.zeros(shape, dtype), style)
            for shape, style in ((case.x, case.styles[0]), (case.out, case.styles[1])))
    list(plan(gpu, mode, x, empty(*case.w, dtype=dtype), y, case.spec))


def test_full_precision_excludes_tensor_cores(gpu: DescribedGpu) -> None:
    """The engine that ranks first uses them, where there are many channels."""
    spec = ConvSpec((1, 1), (1, 1), ((1, 1), (1, 1)), (Segment(0, 64, 0, 64),))
    x, w = empty(IMAGES, 64, 56, 56), empty(64, 64, 3, 3)
    for _, graph in plan(gpu, MathMode.TF32, x, w, x, spec):
        graph.build_plan_at_index(0)
    for _, graph in plan(gpu, MathMode.FP32, x, w, x, spec):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError):
            graph.build_plan_at_index(0)


def test_bfloat16_uses_tensor_cores(gpu: DescribedGpu) -> None:
    """The engine that ranks first is one that would go without them."""
    spec = ConvSpec((1, 1), (1, 1), ((1, 1), (1, 1)), (Segment(0, 64, 0, 64),))
    x, w = (empty(*shape, dtype=BFLOAT16) for shape in ((IMAGES, 64, 56, 56), (64, 64, 3, 3)))
    for _, graph in plan(gpu, MathMode.FP32, x, w, x, spec):
        graph.build_plan_at_index(0)
        graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
        with pytest.raises(cudnn.cudnnGraphNotSupportedError):
            graph.build_plan_at_index(0)


@pytest.mark.parametrize("operation", ConvOperation, ids=lambda operation: operation.value)
@pytest.mark.parametrize("problem", REFUSED.values(), ids=REFUSED)
def test_invalid_problems_do_not_count_as_missing_engines(gpu: DescribedGpu, problem: ConvProblem,
                                                          operation: ConvOperation) -> None:
    """Such an error is a bug, so it is not hidden by the fallback."""
    with pytest.raises(RuntimeError):
        build_engine(gpu, replace(problem, operation=operation), MathMode.FP32, LIMIT_BYTES,
                    handle=None)
