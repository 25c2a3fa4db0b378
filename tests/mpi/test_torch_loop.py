"""A complete loop, interrupted and resumed under another plan, equals one of PyTorch alone."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hpcpar.torch
from tests.mpi import test_torch
from tests.mpi.test_torch import BATCH, close, loss_of, parallel

batch = test_torch.batch


@dataclass
class Loop:
    """A model, or the module, with everything that a checkpoint has."""

    model: Any

    def __post_init__(self) -> None:
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9),
                                 use_buffers=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)

    def state(self) -> dict[str, Any]:
        optimizer = hpcpar.torch.optimizer_state_dict(self.model, self.optimizer) if isinstance(
            self.model, hpcpar.torch.ParallelModule) else self.optimizer.state_dict()
        return {"model": self.model.state_dict(), "ema": self.ema.state_dict(),
                "optimizer": optimizer, "schedule": self.schedule.state_dict()}

    def resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        hpcpar.torch.load_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def step(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update_parameters(self.model)
        self.schedule.step()


def network() -> nn.Module:
    torch.manual_seed(2)
    module = nn.Sequential(nn.BatchNorm2d(2), *test_torch.plain()).double()
    module.register_parameter("unused", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    return module


@pytest.mark.parametrize(("first", "then"), [("data", "spatial"), ("spatial", "data"),
                                             ("filter", "spatial")])
def test_a_resumed_loop_equals_pytorchs(first: str, then: str,
                                        batch: tuple[Tensor, Tensor]) -> None:
    """Weights, averages, the optimizer's state and the metrics of a validation."""
    images, labels = batch
    theirs, ours = Loop(network()), Loop(parallel(network(), first))
    for step in range(6):
        if step == 3:
            file = io.BytesIO()
            torch.save(ours.state(), file)
            file.seek(0)
            ours = Loop(parallel(network(), then))
            ours.resume(torch.load(file))
        ours.step(loss_of(ours.model)(ours.model(images), ours.model.local(labels)))
        theirs.step(functional.cross_entropy(theirs.model(images), labels))
    found, wanted = ours.state(), theirs.state()
    for part in "model", "ema":
        assert list(found[part]) == list(wanted[part])
        assert all(close(value, wanted[part][name]) for name, value in found[part].items())
    assert found["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    assert found["schedule"] == wanted["schedule"]
    for number, kept in wanted["optimizer"]["state"].items():
        assert all(close(found["optimizer"]["state"][number][key], value)
                   for key, value in kept.items())
    net, whole = ours.ema.module.eval(), theirs.ema.eval()(images).detach()
    with torch.no_grad():
        assert close(hpcpar.torch.gather(net(images), net), whole)
        y, own = net(images[:3], incomplete=True), net.local(labels[:3], incomplete=True)
        assert hpcpar.torch.sum((y.argmax(1) == own).sum(), net) == (
            whole[:3].argmax(1) == labels[:3]).sum()


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_torchmetrics_counts_gathered_outputs(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    metrics = pytest.importorskip("torchmetrics.classification")
    model = parallel(network(), strategy).eval()
    ours, theirs = (metrics.MulticlassAccuracy(5) for _ in range(2))
    for images in batch[0], 2 * batch[0]:
        ours.update(hpcpar.torch.gather(model(images), model), batch[1])
        theirs.update(network().eval()(images), batch[1])
    assert len(batch[0]) == BATCH and close(ours.compute(), theirs.compute())
