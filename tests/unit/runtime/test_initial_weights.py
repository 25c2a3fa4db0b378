"""Initial weights: what a network knows before its first iteration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcpar.network.builtin import NETWORKS
from hpcpar.network.layers import BatchNorm, LogisticCrossEntropy, Shape
from hpcpar.plan.plan import NetworkSpec
from hpcpar.runtime.parameters import initial_deviation, initial_rows, initial_scale

#: Image sizes that every layer of the network fits, small ones.
SIZES = {"lenet5": 28, "mlp": 28, "inception_v3": 75, "alexnet": 67, "alexnet-owt": 67,
         "unet": 16, "unet3d": 8}


def test_residual_branches_start_at_zero() -> None:
    """The last normalization of each of ResNet-50's 16 blocks, and no other."""
    network = NetworkSpec("resnet50", (3, 32, 32), 10).build()
    scales = {layer.name: initial_scale(network, layer) for layer in network.layers
              if isinstance(layer, BatchNorm)}
    zero = [name for name, scale in scales.items() if scale == 0.0]
    assert len(zero) == 16 and all(name.endswith("conv3.bn") for name in zero)
    assert {scale for name, scale in scales.items() if name not in zero} == {1.0}


def squares(name: str, shape: Shape) -> dict[str, float]:
    """Variance of the initial weights of every layer."""
    network = NetworkSpec(name, shape, 10).build()
    return {layer.name: initial_deviation(network, layer) ** 2 for layer in network.weighted}


def test_widening_layers_scale_weights_by_outputs() -> None:
    """He's deviation, by the outputs of a fully connected layer that widens; a tenth in the end."""
    assert squares("lenet5", (1, 8, 8)) == pytest.approx({
        "conv1": 2 / 25, "conv2": 2 / (25 * 6), "fc1": 2 / 120, "fc2": 2 / 120,
        "fc3": 0.01 * 2 / 84})
    network = NetworkSpec("lenet5", (1, 8, 8), 10).build()
    layer = network.by_name["fc1"]
    rows = initial_rows(network, layer, 0, 0, 120, "float64")
    assert rows.shape == (120, 64) and abs(rows.std() ** 2 * 60 - 1) < 0.05
    assert np.array_equal(initial_rows(network, layer, 0, 7, 9, "float64"), rows[7:9])


def test_layers_behind_dropout_start_smaller() -> None:
    """Dropout of a half makes the mean square of what it gives twice as large."""
    of = squares("vgg16", (3, 32, 32))
    assert of["fc6"] == pytest.approx(2 / 4096) and of["fc7"] == pytest.approx(1 / 4096)
    assert of["fc8"] == pytest.approx(0.01 / 4096)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "cosmoflow"])
def test_the_first_loss_equals_a_random_guess(name: str) -> None:
    """The loss of equal odds, within 15%: the classes start nearly alike."""
    pytest.importorskip("torch", reason="the reference is PyTorch's")
    from tests.reference import Reference

    usual, classes = NETWORKS[name][1], 10
    size = SIZES.get(name, 32)
    shape: Shape = (usual[0], *(size for _ in usual[1:]))
    network = NetworkSpec(name, shape, classes).build()
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((16, *shape)), rng.integers(
        0, classes, (16, *network.truth_shape))
    logistic = isinstance(network.layers[-1], LogisticCrossEntropy)
    guess = classes * math.log(2) if logistic else math.log(classes)
    first = Reference(network, 0).iterate(images, labels, 0, 0.0, 0.9, 0.0)
    assert first == pytest.approx(guess, rel=0.15)
