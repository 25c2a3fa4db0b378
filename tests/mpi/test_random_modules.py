"""Random PyTorch modules under random plans equal PyTorch's forward and backward pass."""

from __future__ import annotations

import importlib.util

import pytest

from bench.random_networks import check
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                       reason="PyTorch is not installed (extra 'oracle')"),
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
]
#: Some on every number of ranks, others on each.
SEEDS = [100 * world().size + i for i in range(6 if world().size <= 4 else 3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_module_equals_pytorch(seed: int, communicator: Communicator) -> None:
    faults = check(seed, communicator)
    assert not faults, "; ".join(faults)
