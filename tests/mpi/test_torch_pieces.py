"""Pieces of published PyTorch networks, each under random plans, equal PyTorch."""

from __future__ import annotations

import importlib.util

import pytest

from bench.random_networks import check_truth, truth_of
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world

P = world().size
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                       reason="PyTorch is not installed (extra 'oracle')"),
    pytest.mark.skipif(P > 4, reason="every cut occurs on 1 to 4 ranks"),
]
NAMES = ("shuffle", "parts", "channels last", "stacked", "selective", "split attention",
         "channel attention", "pyramid", "resized", "padded", "broadcasts", "pixels", "slopes",
         "activations", "numbers", "in place", "one pixel", "features")


@pytest.mark.parametrize("name", NAMES)
def test_a_piece_equals_pytorch(name: str, communicator: Communicator) -> None:
    from bench.torch_pieces import PIECES, piece

    assert tuple(PIECES) == NAMES
    faults = check_truth(lambda: truth_of(*piece(name)), 10 * len(name) + P, communicator)
    assert not faults, "; ".join(faults)
