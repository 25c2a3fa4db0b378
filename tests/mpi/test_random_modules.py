"""Random PyTorch modules under random plans equal PyTorch's forward and backward pass."""

from __future__ import annotations

import importlib.util
import random

import pytest

from bench.random_modules import random_module
from bench.random_networks import Truth, check, check_truth, truth_of
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


def frozen(seed: int) -> Truth:
    """A random module of which half of the weights are frozen, the first layers with odd seeds."""
    module, shape, batch = random_module(seed)
    parts = [part for part in module.modules() if [*part.parameters(recurse=False)]]
    half = len(parts) // 2
    for part in parts[:half] if seed % 2 else random.Random(seed).sample(parts, half):
        part.requires_grad_(False)
    return truth_of(module, shape, batch)


@pytest.mark.parametrize("seed", SEEDS)
def test_frozen_weights_stay_and_the_others_train_as_in_pytorch(
        seed: int, communicator: Communicator) -> None:
    faults = check_truth(lambda: frozen(seed + 50), seed, communicator)
    assert not faults, "; ".join(faults)
