"""The tests' serial truth against networks written in torch.nn by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    AvgPool3d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    LogisticCrossEntropy,
    MeanSquaredError,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.boxes import block
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.schedule.one_weird_trick import switch
from tests.mpi.networks import sample
from tests.reference import Reference, torch_optimizer
from tests.unit.torch_models import Branches, Residual, Volumes, branches, residual, volumes

torch = pytest.importorskip("torch", reason="PyTorch is the reference of these tests",
                            exc_type=ImportError)
nn = torch.nn

from tests.reference_layers import average  # noqa: E402

RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.01


def copy(reference: Reference, model: Any) -> Any:
    """Give a model the reference's weights; its modules have the layers' names."""
    model = model.double()
    with torch.no_grad():
        for name, tensors in reference.weights.items():
            for parameter, tensor in zip(getattr(model, name).parameters(), tensors, strict=True):
                parameter.copy_(tensor)
    return model


def data(network: Network, batch: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Batches [steps, N, ...] and their labels or targets."""
    images, targets = sample(network, steps * batch, np.random.default_rng(3))
    return images.reshape(steps, batch,
                          *images.shape[1:]), targets.reshape(steps, batch, *targets.shape[1:])


def mean_loss(network: Network, scores: Any, targets: np.ndarray) -> Any:
    y = torch.from_numpy(targets)
    if isinstance(network.layers[-1], MeanSquaredError):
        return nn.MSELoss()(scores, y)
    if isinstance(network.layers[-1], LogisticCrossEntropy):
        truth = nn.functional.one_hot(y, network.classes).double()
        return nn.BCEWithLogitsLoss()(scores, truth) * network.classes
    return nn.CrossEntropyLoss()(scores, y)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a),
                               np.asarray(b.detach() if isinstance(b, torch.Tensor) else b),
                               rtol=1e-9, atol=1e-11)


def same_state(reference: Reference, model: Any) -> None:
    """Weights and running statistics agree."""
    for name, tensors in reference.weights.items():
        module = getattr(model, name)
        for parameter, tensor in zip(module.parameters(), tensors, strict=True):
            close(tensor.detach(), parameter)
        if name in reference.running:
            close(reference.running[name],
                  torch.stack([module.running_mean, module.running_var])[None])


def update_like(model: Any, optimizer: str) -> Any:
    known, options = torch_optimizer(optimizer, RATE, MOMENTUM, DECAY)
    return known(model.parameters(), **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("network", "model"),
                         [(residual(), Residual), (branches(), Branches), (volumes(), Volumes)],
                         ids=["residual", "branches", "volumes"])
def test_training_equals_torchs(network: Network, model: Any, optimizer: str) -> None:
    reference = Reference(network, 1, optimizer=optimizer)
    theirs = copy(reference, model())
    update = update_like(theirs, optimizer)
    images, targets = data(network, 5, 4)
    for i in range(3):
        mine = reference.iterate(images[i], targets[i], i, RATE, MOMENTUM, DECAY)
        update.zero_grad()
        x = torch.from_numpy(images[i]).requires_grad_()
        value = mean_loss(network, theirs(x), targets[i])
        value.backward()
        update.step()
        close(mine, value)
        close(reference.gradients["input"], x.grad)
        assert set(reference.outputs) == set(reference.gradients) == {
            layer.name for layer in network.layers[:-1]}
        close(reference.weight_gradients["fc"][0], theirs.fc.weight.grad)
        same_state(reference, theirs)
    theirs.eval()
    mine = reference.evaluate(images[3], targets[3])
    scores = theirs(torch.from_numpy(images[3]))
    close(reference.outputs["fc"], scores)
    close(mine, mean_loss(network, scores, targets[3]))


def test_average_pooling_of_volumes() -> None:
    """PyTorch's, wherever it has one."""
    rng, compared = np.random.default_rng(0), 0
    for _ in range(200):
        kernel, stride, image = (tuple(map(int, rng.integers(low, high, 3)))
                                 for low, high in ((1, 5), (1, 4), (1, 8)))
        padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
        options: dict[str, Any] = {"ceil_mode": bool(rng.integers(2)),
                                   "count_include_pad": bool(rng.integers(2))}
        x = torch.from_numpy(rng.standard_normal((2, 3, *image)))
        try:
            expected = nn.functional.avg_pool3d(x, kernel, stride, padding, **options)
        except RuntimeError:
            continue
        close(average(AvgPool3d("x", ("in",), kernel, stride, padding, **options), x), expected)
        compared += 1
    assert compared > 50


@pytest.mark.parametrize("batch", [2, 7])
def test_micro_batches_have_their_own_statistics_and_one_gradient(batch: int) -> None:
    """Statistics of each part, running ones updated by each, the gradient of the batch's mean; some
    parts may be empty.
    """
    network, parts = residual(), 3
    reference = Reference(network, 1, microbatches=parts)
    theirs = copy(reference, Residual())
    update = update_like(theirs, "momentum")
    images, targets = data(network, batch, 2)
    for i in range(2):
        mine = reference.iterate(images[i], targets[i], i, RATE, MOMENTUM, DECAY)
        update.zero_grad()
        total, scores = 0.0, []
        for m in range(parts):
            start, stop = block(batch, parts, m)
            if start < stop:
                scores.append(theirs(torch.from_numpy(images[i][start:stop])))
                value = mean_loss(network, scores[-1],
                                  targets[i][start:stop]) * (stop - start) / batch
                value.backward()
                total += value.item()
        update.step()
        close(mine, total)
        close(reference.outputs["fc"], torch.cat(scores))
        assert all(g.shape == reference.outputs[name].shape
                   for name, g in reference.gradients.items())
        same_state(reference, theirs)


def test_blocks_have_their_own_statistics() -> None:
    """Four blocks, one of them empty, one of a single sample: each as a normalization of its own,
    weights in common.
    """
    network = residual()
    pieces = [(slice(0, 3), slice(0, 4), slice(None)), (slice(0, 3), slice(4, 9), slice(None)),
              (slice(3, 4), slice(None), slice(None)), (slice(4, 4), slice(None), slice(None))]
    reference = Reference(network, 1, blocks=lambda layer, samples: pieces)
    model = copy(reference, Residual())
    images, targets = data(network, 4, 1)
    reference.iterate(images[0], targets[0], 0, 0.0, 0.0, 0.0)
    x = model.stem(torch.from_numpy(images[0])).detach().requires_grad_()
    for i, (samples, *image) in enumerate(pieces[:3]):
        own = nn.BatchNorm2d(4).double()
        part = (samples, slice(None), *image)
        y = own(x[part])
        close(reference.outputs["stem_bn"][part], y)
        close(reference.running["stem_bn"][i], torch.stack([own.running_mean, own.running_var]))
        y.backward(torch.from_numpy(reference.gradients["stem_bn"][part]))
    close(reference.gradients["stem"], x.grad)
    assert np.array_equal(reference.running["stem_bn"][3], [np.zeros(4), np.ones(4)])


def test_a_normalized_single_value_is_beta() -> None:
    network = Chain("single", (4,)).add(BatchNorm, "bn").add(Linear, "fc",
                                                             out_features=2).add(
        SoftmaxCrossEntropy, "loss").build()
    reference = Reference(network, 1)
    reference.iterate(np.array([[1.0, -3, 2, 7]]), np.array([1]), 0, RATE, MOMENTUM, DECAY)
    assert not reference.outputs["bn"].any() and not reference.gradients["input"].any()
    close(reference.running["bn"][0], [np.array([0.1, -0.3, 0.2, 0.7]), np.full(4, 0.9)])


def convolved() -> Network:
    net = Chain("fc_passes", (2, 6, 5)).add(Conv2d, "conv", out_channels=3,
                                            kernel=3).add(ReLU, "relu").add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=7).add(ReLU, "relu1").add(Linear, "fc2", out_features=4)
    return net.add(SoftmaxCrossEntropy, "loss").build()


def test_fc_passes_update_in_between() -> None:
    """By hand: features of the whole batch, three updates of the classifier, one of the
    convolution.
    """
    network, batch = convolved(), 6
    assert network.layers[switch(network)].name == "fc1"
    fc_passes = [np.array([0, 3]), np.array([5, 1]), np.array([2, 4])]
    reference = Reference(network, 1, fc_passes=fc_passes)
    images, targets = data(network, batch, 2)
    front = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten()).double()
    back = nn.Sequential(nn.Linear(36, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    with torch.no_grad():
        for layer, name in (front[0], "conv"), (back[0], "fc1"), (back[2], "fc2"):
            layer.weight.copy_(reference.weights[name][0])
            layer.bias.zero_()
    updates = update_like(front, "momentum"), update_like(back, "momentum")
    for i in range(2):
        mine = reference.iterate(images[i], targets[i], i, RATE, MOMENTUM, DECAY)
        features, gradient, total = front(torch.from_numpy(images[i])), torch.zeros(
            batch, 36, dtype=torch.float64), 0.0
        for samples in fc_passes:
            x = features[samples].detach().requires_grad_()
            value = mean_loss(network, back(x), targets[i][samples])
            updates[1].zero_grad()
            value.backward()
            updates[1].step()
            gradient[samples] = x.grad / 3
            total += value.item() / 3
        updates[0].zero_grad()
        features.backward(gradient)
        updates[0].step()
        close(mine, total)
        close(reference.gradients["flatten"], gradient)
        close(reference.outputs["flatten"], features)
        for name, layer in ("conv", front[0]), ("fc1", back[0]), ("fc2", back[2]):
            close(reference.weights[name][0].detach(), layer.weight)
            close(reference.weight_gradients[name][1], layer.bias.grad)
    assert set(reference.outputs) == {layer.name for layer in network.layers[:-1]}


def test_dropout_masks_differ_from_pass_to_pass() -> None:
    network = Chain("drop", (50,)).add(Dropout, "drop", rate=0.3).add(Linear, "fc", out_features=2)
    reference = Reference(network.add(SoftmaxCrossEntropy, "loss").build(), 4, microbatches=2)
    masks = []
    for step in range(2):
        reference.iterate(np.ones((8, 50)), np.zeros(8, int), step, RATE, MOMENTUM, DECAY)
        masks += np.split(reference.outputs["drop"], 2)
    drop: Any = reference.network.by_name["drop"]
    for number, mask in enumerate(masks):
        assert np.array_equal(mask, reference.mask(drop, (4, 50), number))
        assert set(np.unique(mask)) == {0.0, 1 / 0.7} and 0.2 < (mask == 0).mean() < 0.4
    assert len({m.tobytes() for m in masks}) == 4
    reference.evaluate(np.ones((8, 50)), np.zeros(8, int))
    assert np.all(reference.outputs["drop"] == 1)
