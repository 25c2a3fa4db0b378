"""Random PyTorch modules load and equal PyTorch's forward and backward pass on one rank."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("mpi4py", exc_type=ImportError)

from bench.random_networks import check
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@pytest.mark.parametrize("seed", range(6))
def test_a_random_module_equals_pytorch(seed: int) -> None:
    assert check(seed, Communicator(world(), backend("cpu"))) == []
