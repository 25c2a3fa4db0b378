"""Elementwise idioms of PyTorch code are read, and train as in PyTorch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("onnx", exc_type=ImportError)
pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("mpi4py", exc_type=ImportError)

from bench.random_networks import check_truth, truth_of
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network import from_torch
from hpcpar.network.builder import with_loss
from hpcpar.network.layers import Add, Conv2d, MeanSquaredError, Pointwise, Select, Whole
from hpcpar.network.read.onnx import load
from tests.idioms import IDIOMS, SHAPE, WHOLE, module
from tests.unit.network.onnx_nodes import export

#: Idioms that PyTorch does not write to ONNX files as they are: operators without an export,
#: `detach`, constants in single precision, tensors of no module, folded weights.
NOT_IN_FILES = {
    "threshold", "log of a sum of exponentials", "xielu", "detach", "data",
    "straight-through rounding", "cosine", "gelu by hand", "gelu by tanh by hand", "selu",
    "fixed mean and deviation", "window function", "swish with beta",
    "generalized divisive normalization", "learned temperature", "learned gate"}


@pytest.mark.parametrize("name", [*IDIOMS, *WHOLE])
def test_an_idiom_equals_pytorch(name: str) -> None:
    truth = truth_of(module(name), SHAPE, 3, MeanSquaredError)
    assert check_truth(lambda: truth, 0, Communicator(world(), backend("cpu"))) == []


@pytest.mark.parametrize("name", sorted(set(IDIOMS) - NOT_IN_FILES))
def test_an_exported_idiom_equals_pytorch(name: str, tmp_path: Path,
                                          caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    written, plain = export(tmp_path / "n.onnx", module(name).float(), SHAPE), module(name)
    network = with_loss(load(written), MeanSquaredError.kind)
    truth = truth_of(plain, SHAPE, 3, MeanSquaredError, network)
    assert check_truth(lambda: truth, 0, Communicator(world(), backend("cpu"))) == []


@pytest.mark.parametrize("name", [
    "mish by hand", "gelu by hand", "soft clipping", "cubic kernel", "charbonnier", "glu",
    "masked by a comparison", "straight-through rounding", "power of a parameter"])
def test_connected_operators_are_one_layer(name: str) -> None:
    middle = [layer for layer in from_torch(module(name), SHAPE).layers[1:-1]
              if not isinstance(layer, Conv2d | Select)]
    assert [type(layer) for layer in middle] == [Pointwise]


@pytest.mark.parametrize("name", WHOLE)
def test_the_rest_is_one_layer_among_others(name: str) -> None:
    network = from_torch(module(name), SHAPE)
    kinds = [type(layer) for layer in network.layers[1:-1]]
    parts = 2 if name in ("attention beside a normalization", "parts changed in place") else 1
    assert kinds[0] == kinds[-1] == Conv2d and kinds.count(Whole) == parts, kinds
    (note,) = network.notes
    assert "PyTorch computes" in note


def test_layers_without_a_formula_stay_as_they_are() -> None:
    assert Add in map(type, from_torch(module("type_as"), SHAPE).layers)
    assert Pointwise not in map(type, from_torch(module("gated activation"), SHAPE).layers)


def test_transposed_convolutions_of_signals_equal_pytorch() -> None:
    """The layers enlarge images of one row."""
    from torch import nn

    plain = nn.Sequential(
        nn.ConvTranspose1d(3, 6, 4, stride=2, padding=1, groups=3), nn.BatchNorm1d(6), nn.ReLU(),
        nn.ConvTranspose1d(6, 2, 3, stride=2, padding=1, output_padding=1, dilation=2),
        nn.Flatten(), nn.Linear(2 * 38, 5)).double()
    truth = truth_of(plain, (3, 9), 3)
    assert Whole not in map(type, truth.network.layers)
    assert check_truth(lambda: truth, 0, Communicator(world(), backend("cpu"))) == []
