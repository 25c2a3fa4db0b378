"""Mixed precision on one rank against PyTorch's autocast, to float16 with its GradScaler.

The tolerance is the difference between PyTorch's own float32 and its autocast, measured here: two
ways to train that round at other places may differ as much.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.network.builder import Graph
from hpcpar.network.builtin import built_in, resnet
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.loss_scale import ScaleState
from hpcpar.runtime.observe import Watch
from hpcpar.schedule.lower import lower
from tests.mpi.zoo import SMALL

pytestmark = [
    pytest.mark.skipif(world().size > 1, reason="PyTorch trains in one process"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]
STEPS, SEED = 6, 7
NO_SCALE, TORCH_SCALE = ScaleState(1.0), 2.0**10
#: Losses of every step, outputs and their gradients of the first, and weights of the last.
Results = dict[str, dict[str, np.ndarray]]


def resnet18() -> Network:
    """ResNet-18 of He et al., with a quarter of its channels."""
    net = Graph("resnet18", (3, 48, 48))
    resnet.conv_norm(net, "conv1", 16, 7, 2)
    net.add(ReLU, "relu1")
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    for stage in range(4):
        for i in range(2):
            name, stride, x = f"stage{stage}.{i}", 2 if stage and not i else 1, net.last
            shortcut = x if stride == 1 else resnet.conv_norm(net, f"{name}.down", 16 << stage, 1,
                                                              stride)
            resnet.conv_norm(net, f"{name}.conv1", 16 << stage, 3, stride, after=x)
            net.add(ReLU, f"{name}.relu1")
            last = resnet.conv_norm(net, f"{name}.conv2", 16 << stage, 3)
            net.add(Add, f"{name}.add", after=(last, shortcut))
            net.add(ReLU, f"{name}.relu2")
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


NETWORKS: dict[str, tuple[Callable[[], Network], int]] = {
    "lenet5": (lambda: built_in("lenet5"), 16),
    "unet": SMALL["unet"],
    "resnet18": (resnet18, 8),
}


def by_torch(network: Network, images: np.ndarray, labels: np.ndarray, precision: str,
             skipped: int) -> Results:
    """Train, without updates in the first iterations."""
    import torch

    from tests.reference import Reference

    dtype = torch.float16 if precision == "amp-fp16" else torch.bfloat16

    class Single(Reference):
        """In float32, or under autocast."""

        def _forward(self, layers: Any, have: dict[str, Any], number: int) -> None:
            with torch.autocast("cpu", dtype, enabled=precision != "fp32"):
                for layer in layers:
                    if not isinstance(layer, BatchNorm):
                        super()._forward([layer], have, number)
                        continue
                    y = torch.nn.functional.batch_norm(
                        have[layer.inputs[0]], None, None, *self.weights[layer.name],
                        training=True, eps=layer.eps)
                    y.retain_grad()
                    have[layer.name] = y

        def _input(self, images: np.ndarray) -> dict[str, Any]:
            return {network.layers[0].name: torch.from_numpy(images).requires_grad_()}

        def _loss(self, have: dict[str, Any], targets: np.ndarray, samples: int) -> Any:
            last = network.layers[-1].inputs[0]
            loss = super()._loss(have | {last: have[last].float()}, targets, samples)
            return scaler.scale(loss)

        def _update(self, *unused: Any) -> None:
            scaler.unscale_(optimizer)
            if len(losses) >= skipped:
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        def _keep(self, have: dict[str, Any], samples: Any, batch: int) -> None:
            for name, tensor in have.items():
                self.outputs[name] = tensor.detach().float().numpy()
                if tensor.grad is not None:
                    self.gradients[name] = tensor.grad.float().numpy()

    torch.set_num_threads(1)
    trained = Single(network, SEED)
    for name, tensors in trained.weights.items():
        trained.weights[name] = [t.detach().float().requires_grad_() for t in tensors]
    optimizer = torch.optim.SGD([t for ts in trained.weights.values() for t in ts], 0.02, 0.9)
    scale = TORCH_SCALE if precision == "amp-fp16" else 1.0
    scaler = torch.amp.GradScaler("cpu", scale, enabled=scale > 1)
    losses: list[float] = []
    first: Results = {}
    for i in range(STEPS):
        losses.append(trained.iterate(images[i], labels[i], i, 0.02, 0.9, 0.0) / scale)
        first = first or {"output": trained.outputs, "gradient": {
            name: gradient / scale for name, gradient in trained.gradients.items()}}
    assert scaler.get_scale() == scale
    return first | {"loss": {"loss": np.array(losses)}, "weight": {
        name: tensors[0].detach().numpy() for name, tensors in trained.weights.items()}}


def by_executor(network: Network, images: np.ndarray, labels: np.ndarray,
                communicator: Communicator, precision: str, scale: ScaleState = NO_SCALE
                ) -> tuple[Results, ScaleState]:
    plan = Plan(NetworkSpec(network.name, network.image_shape, network.classes), 1, images.shape[1],
                "data", {layer.name: Config() for layer in network.layers}, precision=precision)
    schedule = lower(network, plan, lambda step: ("ring", 1))
    executor = Executor(network, plan, schedule, communicator, communicator.backend, SEED)
    if executor.loss_scale is not None:
        executor.loss_scale.state = scale
    watch = Watch(executor, executor.training)
    losses, first = [], {}
    for i in range(STEPS):
        losses.append(executor.iterate(images[i], labels[i], i, 0.02, 0.9, 0.0)[0])
        first = first or {"output": watch.outputs.copy(), "gradient": {
            name: gradient / scale.scale for name, gradient in watch.gradients.items()}}
    return first | {"loss": {"loss": np.array(losses)}, "weight": {
        name: p.split(p.flat)[0] for name, p in executor.parameters.items()}
        }, executor.loss_scale.state if executor.loss_scale is not None else scale


def off(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-30))


@pytest.mark.parametrize(("name", "precision", "scale"), [
    *((name, "amp", NO_SCALE) for name in NETWORKS), ("lenet5", "amp-fp16", ScaleState()),
    ("resnet18", "amp-fp16", ScaleState()), ("lenet5", "amp-fp16", ScaleState(2.0**22))])
def test_training_equals_autocast(name: str, precision: str, scale: ScaleState,
                                  communicator: Communicator) -> None:
    """With the largest scale, gradients overflow at first. PyTorch's own scale is small, because
    its weight gradients, in float16, overflow earlier than ours.
    """
    build, batch = NETWORKS[name]
    network, rng = build(), np.random.default_rng(5)
    images = rng.standard_normal((STEPS, batch, *network.image_shape)).astype(np.float32)
    labels = rng.integers(0, network.classes, (STEPS, batch, *network.truth_shape))
    ours, after = by_executor(network, images, labels, communicator, precision, scale)
    single, mixed = (by_torch(network, images, labels, p, after.skipped)
                     for p in ("fp32", precision))
    if precision == "amp-fp16":
        skipped = 2 if scale.scale > ScaleState().scale else 0
        assert after == (scale.scale / 2**skipped, STEPS - skipped, skipped)
    if after.skipped:
        del ours["gradient"]  # infinite
    for quantity, tensors in ours.items():
        differences = np.array([(off(found, mixed[quantity][layer]),
                                 off(single[quantity][layer], mixed[quantity][layer]))
                                for layer, found in tensors.items()
                                if layer in mixed[quantity]])
        found, tolerance = np.sqrt((differences ** 2).mean(axis=0))
        assert found <= tolerance, quantity
