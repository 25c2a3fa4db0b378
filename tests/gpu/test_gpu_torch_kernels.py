"""PyTorch's convolutions on a GPU's arrays: the cases of every backend, and whole iterations."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

from hpcpar.comm.device_options import DeviceOptions
from hpcpar.errors import InputError
from hpcpar.kernels import backend as make_backend
from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.numpy_backend import NumpyBackend
from tests.gpu.test_gpu_training import losses
from tests.kernel_conv_cases import *  # noqa: F403
from tests.kernel_conv_cases import plain_conv
from tests.kernel_support import fetch


@pytest.fixture(scope="module")
def backend(gpu: Any) -> Any:
    try:
        return make_backend("gpu", kernels="torch")
    except InputError as err:
        pytest.skip(str(err))


@pytest.mark.parametrize(("precision", "within"), [("fp64", 1e-10), ("fp32", 1e-3)])
@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_training_equals_the_cpus(name: str, precision: str, within: float, backend: Any) -> None:
    expected = losses(name, NumpyBackend(), precision)
    assert losses(name, backend, precision) == pytest.approx(expected, rel=within)
    assert backend.versions["convolutions"].startswith("PyTorch")


def test_bfloat16_sums_are_rounded_once(backend: Any) -> None:
    """Sums of whole numbers are exact."""
    case, found = plain_conv(2, 4, 3, 8, 3, 1, 1), []
    rng = np.random.default_rng(0)
    host = [rng.integers(-3, 4, s).astype(BFLOAT16) for s in (case.x, case.w, case.w[:1])]
    for kernels, is_half in (backend, True), (NumpyBackend(), False):
        x, w, bias = (kernels.upload(a if is_half else a.astype(np.float32)) for a in host)
        out = kernels.empty(case.out, x.dtype)
        kernels.conv_forward(x, w, bias, case.spec, out)
        found.append(fetch(out).astype(np.float32))
    np.testing.assert_array_equal(found[0], found[1].astype(BFLOAT16).astype(np.float32))


def test_numpys_kernels_are_refused() -> None:
    with pytest.raises(InputError, match="--kernels numpy runs on CPUs, but --device is gpu"):
        DeviceOptions(device="gpu", kernels="numpy")
