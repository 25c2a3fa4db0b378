"""Elementwise idioms of PyTorch code are read, and train as in PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("mpi4py", exc_type=ImportError)

from bench.random_networks import check_truth, truth_of
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network import from_torch
from hpcpar.network.layers import Add, Conv2d, MeanSquaredError, Pointwise, Select
from tests.idioms import IDIOMS, SHAPE, module


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_equals_pytorch(name: str) -> None:
    truth = truth_of(module(name), SHAPE, 3, MeanSquaredError)
    assert check_truth(lambda: truth, 0, Communicator(world(), backend("cpu"))) == []


@pytest.mark.parametrize("name", [
    "mish by hand", "gelu by hand", "soft clipping", "cubic kernel", "charbonnier", "glu",
    "masked by a comparison", "straight-through rounding", "power of a parameter"])
def test_connected_operators_are_one_layer(name: str) -> None:
    middle = [layer for layer in from_torch(module(name), SHAPE).layers[1:-1]
              if not isinstance(layer, Conv2d | Select)]
    assert [type(layer) for layer in middle] == [Pointwise]


def test_layers_without_a_formula_stay_as_they_are() -> None:
    assert Add in map(type, from_torch(module("type_as"), SHAPE).layers)
    assert Pointwise not in map(type, from_torch(module("gated activation"), SHAPE).layers)
