"""`hpcpar.torch` refuses gradients that a module defines by itself, which would train otherwise."""

from __future__ import annotations

import importlib.util

import pytest

from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import BATCH
from tests.unit.network.test_own_gradients import Calls, Reversed, Rounded, Swish


def test_another_gradient_is_refused() -> None:
    for module in Calls(Reversed, 1.0), Calls(Rounded):
        name = module.function.__name__
        with pytest.raises(InputError, match=f"{name} .torch.autograd.Function. defines a"):
            parallelize(module, (3, 8, 8), BATCH, "data")
    assert parallelize(module, (3, 8, 8), BATCH, "data", forward_only=True) is not None
    assert parallelize(Calls(Swish), (3, 8, 8), BATCH, "data") is not None
