"""For tests of the pretended cuDNN and the real one: convolutions on the host, compared with the
NumPy backend, and convolutions that cuDNN refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from hpcpar.kernels.cudnn_conv import CudnnConv
from hpcpar.kernels.cudnn_graphs import ConvOperation, ConvProblem, StridedShape
from hpcpar.kernels.interface import MathMode
from hpcpar.kernels.numpy_backend import NumpyBackend
from tests.cuda_support import NumpyAsCupy
from tests.kernel_conv_cases import ConvCase
from tests.kernel_support import blank, place, random

NUMPY = NumpyBackend()
LIMIT_BYTES = 2**20


class OneStream(NumpyAsCupy):
    """NumPy in CuPy's place, with a current stream."""

    def __init__(self) -> None:
        self.stream = SimpleNamespace(ptr=5)
        self.cuda = SimpleNamespace(
            get_current_stream=lambda: self.stream, Stream=lambda non_blocking: None,
            runtime=SimpleNamespace(memGetInfo=lambda: (1 << 30, 1 << 30)),
            Device=lambda number=0: SimpleNamespace(pci_bus_id="0000:00:00.0"))


class Fallback:
    """The NumPy kernels; counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def is_faster_to_data(self, *convolution: Any) -> bool:
        return False

    is_faster_to_weight = is_faster_to_data

    def __getattr__(self, name: str) -> Callable[..., None]:
        self.calls += 1
        return getattr(NUMPY, f"conv_{name}")


def convolution(library: ModuleType, limit_bytes: int = LIMIT_BYTES) -> CudnnConv:
    backend = NumpyBackend()
    backend.xp = OneStream()
    return CudnnConv(library, backend, Fallback(), MathMode.FP32, limit_bytes)


def compare(conv: CudnnConv, case: ConvCase, dtype: Any = np.float32) -> None:
    """The three convolutions of a case against the NumPy kernels.

    The numbers are whole, so sums in any order are equal. In bfloat16 each is rounded once.
    """
    spec, f32 = case.spec, np.float32
    x, w, bias, dy = (np.rint(3 * random(i, s, f32))
                      for i, s in enumerate((case.x, case.w, case.w[:1], case.out)))
    dev_w, dev_bias = w.astype(dtype), bias.astype(dtype)
    dev_x = place(NUMPY, x.astype(dtype), case.styles[0])
    dev_dy = place(NUMPY, dy.astype(dtype), case.styles[2])

    def check(found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_array_equal(found.astype(f32), expected.astype(dtype).astype(f32))

    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)

    for given_bias in (bias, None):
        out, want = blank(NUMPY, case.out, dtype, case.styles[1]), np.empty(case.out, f32)
        conv.forward(dev_x, dev_w, dev_bias if given_bias is not None else None, spec, out, tick)
        NUMPY.conv_forward(x, w, given_bias, spec, want)
        check(out, want)
    dx, want = blank(NUMPY, case.x, dtype, case.styles[3]), np.empty(case.x, f32)
    conv.backward_data(dev_dy, dev_w, spec, dx, tick)
    NUMPY.conv_backward_data(dy, w, spec, want)
    check(dx, want)
    dw, dbias, want, want_bias = (np.full(s, 99, f32) for s in (w.shape, bias.shape) * 2)
    conv.backward_weight(dev_x, dev_dy, spec, dw, dbias, tick)
    NUMPY.conv_backward_weight(x, dy, spec, want, want_bias)
    check(dw, want)
    np.testing.assert_array_equal(dbias, want_bias)
    assert ticks or not all(case.x + case.w + case.out)


def packed(*dims: int) -> StridedShape:
    """The shape of a contiguous array."""
    return StridedShape.of(np.empty(dims, np.float32))


ACCEPTED = ConvProblem(ConvOperation.FORWARD, packed(2, 8, 6, 6), packed(16, 8, 3, 3),
                       packed(2, 16, 6, 6), ((1, 1), (1, 1)), (1, 1), (1, 1), "float32")
REFUSED = {
    "fewer rows": replace(ACCEPTED, y=packed(2, 16, 5, 6)),
    "part of a group": replace(ACCEPTED, x=packed(2, 9, 6, 6)),
    "outputs in unequal groups": replace(ACCEPTED, x=packed(2, 24, 6, 6)),
    "other outputs": replace(ACCEPTED, y=packed(2, 15, 6, 6)),
    "other images": replace(ACCEPTED, y=packed(1, 16, 6, 6)),
    "no image": replace(ACCEPTED, x=packed(0, 8, 6, 6), y=packed(0, 16, 6, 6)),
    "negative padding": replace(ACCEPTED, pads=((-1, 3), (1, 1))),
    "overlapping x": replace(ACCEPTED, x=StridedShape((2, 8, 6, 6), (288, 36, 4, 1))),
    "overlapping y": replace(ACCEPTED, y=StridedShape((2, 16, 6, 6), (576, 36, 4, 1))),
}
