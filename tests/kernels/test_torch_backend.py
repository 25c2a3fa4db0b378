"""PyTorch's convolutions and batch normalization, held to the cases of all backends."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch

from hpcpar.kernels import torch_backend, torch_conv
from hpcpar.kernels.bfloat16 import BFLOAT16, widening
from hpcpar.kernels.conv_choice import LAST, NUMPY, RULE, TORCH
from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import address
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.kernels.torch_backend import TorchBackend
from hpcpar.kernels.torch_conv import torch_call
from tests.kernel_conv_cases import *  # noqa: F403
from tests.kernel_conv_cases import ConvCase, plain_conv
from tests.kernel_norm_cases import *  # noqa: F403
from tests.kernel_support import random


@pytest.fixture(scope="module", params=[TORCH, LAST])
def backend(request: pytest.FixtureRequest) -> Any:
    return TorchBackend(dict.fromkeys(RULE, request.param))


@pytest.fixture
def sums_tolerance(dtype: Any) -> float:
    """PyTorch rounds sums to the type of the gradients."""
    return 1e-6 if dtype == np.float32 else 1e-9


def spec_of(*segments: Segment, pads: tuple[int, int] = (1, 1)) -> ConvSpec:
    return ConvSpec((1, 1), (1, 1), (pads, pads), segments)


def test_pytorch_computes_equal_groups() -> None:
    """Equal groups over all channels."""
    whole = spec_of(Segment(0, 4, 0, 6))
    assert torch_call((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 8, 8), whole) is not None
    halves = spec_of(Segment(0, 2, 0, 3), Segment(2, 4, 3, 6))
    assert torch_call((2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 8, 8), halves) is not None
    uneven = spec_of(Segment(0, 2, 0, 2), Segment(2, 4, 2, 6))
    assert torch_call((2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 8, 8), uneven) is None
    assert torch_call((0, 4, 8, 8), (6, 4, 3, 3), (0, 6, 8, 8), whole) is None


def test_pads_of_one_side_are_added() -> None:
    """A block of a cut image has its padding on one side."""
    block = spec_of(Segment(0, 4, 0, 6), pads=(0, 1))
    call = torch_call((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 7, 7), block)
    assert call is not None and call.extra == [0, 1, 0, 1] and call.shape == (2, 4, 9, 9)


def test_a_block_may_read_its_padding_alone(backend: Any) -> None:
    """One output, two pixels before the only input."""
    spec = ConvSpec((1, 1), (1, 1), ((0, 0), (2, 0)), (Segment(0, 1, 0, 1),))
    x, w, y, dx = (np.ones((1, 1, 1, 1), np.float32) for _ in range(4))
    backend.conv_forward(x, w, None, spec, y)
    backend.conv_backward_data(x, w, spec, dx)
    assert (y.item(), dx.item()) == (0, 0)


@pytest.mark.parametrize("name", ["forward", "backward data", "backward weight"])
def test_the_choice_decides_each_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for kernel in "_forward", "_backward":
        function = getattr(torch_conv, kernel)
        monkeypatch.setattr(torch_conv, kernel, lambda *args, f=function: (
            called.append(args[-1]), f(*args))[1])
    backend = TorchBackend(dict.fromkeys(RULE, NUMPY) | {f"window small {name}": TORCH})
    x, w, dy = (np.ones(s, np.float32) for s in ((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 8, 8)))
    spec = spec_of(Segment(0, 4, 0, 6))
    backend.conv_forward(x, w, None, spec, np.empty_like(dy))
    backend.conv_backward_data(dy, w, spec, np.empty_like(x))
    backend.conv_backward_weight(x, dy, spec, np.empty_like(w), None)
    mask = {"forward": 1, "backward data": (True, False, False),
            "backward weight": (False, True, False)}[name]
    assert called == [mask]


def test_two_runs_are_bitwise_equal(backend: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 9, 9), (6, 4, 3, 3)))
    first, second = np.empty((2, 2, 6, 9, 9), np.float32)
    for out in first, second:
        backend.conv_forward(x, w, None, spec_of(Segment(0, 4, 0, 6)), out)
    assert np.array_equal(first, second)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                    reason="oneDNN does not compute bfloat16 on this processor")
@pytest.mark.parametrize("library", [NUMPY, TORCH])
@pytest.mark.parametrize("case", [
    pytest.param(plain_conv(2, 4, 6, 8, 3, 1, 1), id="plain"),
    pytest.param(plain_conv(2, 4, 6, 9, 3, 2, 1, fewer=1), id="strided"),
    pytest.param(plain_conv(1, 3, 4, 5, 3, 1, 1, axes=3), id="volume"),
])
def test_bfloat16_sums_are_rounded_once(case: ConvCase, library: str) -> None:
    """As on float32 copies. The numbers are whole, so sums in any order are equal."""
    x, w, bias, dy = (np.rint(3 * random(i, s, np.float32)).astype(BFLOAT16)
                      for i, s in enumerate((case.x, case.w, case.w[:1], case.out)))
    found = []
    for backend in (TorchBackend(dict.fromkeys(RULE, library)), NumpyBackend()):
        on = widening(backend, "bfloat16")
        y, dx = np.empty(case.out, BFLOAT16), np.empty(case.x, BFLOAT16)
        dw, dbias = np.empty(case.w, np.float32), np.empty(case.w[:1], np.float32)
        on.conv_forward(x, w, bias, case.spec, y)
        on.conv_backward_data(dy, w, case.spec, dx)
        on.conv_backward_weight(x, dy, case.spec, dw, dbias)
        found.append([y, dx, dw, dbias])
    assert "conv_forward" in TorchBackend().bfloat16_kernels
    for one, other in zip(*found, strict=True):
        half = other.astype(BFLOAT16) if library == TORCH and one.ndim > 1 else other
        np.testing.assert_array_equal(one.astype(np.float32), half.astype(np.float32))


def test_pytorch_reads_bfloat16_in_place() -> None:
    array = np.ones((2, 3, 4, 4), BFLOAT16)[:, :, 1:, ::2]
    tensor = torch_backend._tensor(array)
    assert tensor.dtype is torch.bfloat16 and tensor.data_ptr() == address(array)
    tensor += 1
    assert (array == 2).all()
