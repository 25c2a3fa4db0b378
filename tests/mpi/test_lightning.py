"""Lightning's Trainer over a plan equals a plain loop; any plan goes on from its checkpoints."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hpcpar.comm.world import World, world
from hpcpar.errors import InputError, RunError

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("lightning") is None:
    pytest.skip("Lightning is not installed (extra 'oracle')", allow_module_level=True)

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import hpcpar.torch
from hpcpar.torch.lightning import PlanStrategy, parallel_part
from hpcpar.torch.optimizer_state import load_optimizer_state_dict, optimizer_state_dict

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")
SIZE, BATCH, SAMPLES, RATE, CLIP = world().size, 8, 20, 0.01, 0.5
STRATEGIES = ["data", "filter", "spatial"] + ["pipeline"] * (SIZE in (2, 3))


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 36, 5)).double()


def data() -> list[tuple[Tensor, int]]:
    seeded = torch.Generator().manual_seed(3)
    return [(torch.randn(2, 12, 12, dtype=torch.float64, generator=seeded), i % 5)
            for i in range(SAMPLES)]


class Task(pl.LightningModule):
    """A module as a user writes it."""

    def __init__(self, plan: str, whole: bool = True) -> None:
        super().__init__()
        self.net = hpcpar.torch.parallelize(net(), (2, 12, 12), BATCH, plan)
        self.whole, self.losses = whole, []

    def training_step(self, batch: Any, number: int) -> Tensor:
        images, labels = batch
        losses = functional.cross_entropy(self.net(images), self.net.local(labels),
                                          reduction="none")
        if not self.whole:
            return losses.mean() + world().rank
        loss = hpcpar.torch.mean(losses, self.net)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), RATE)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def trainer(path: Path, epochs: int, **options: Any) -> pl.Trainer:
    return pl.Trainer(strategy=PlanStrategy(), max_epochs=epochs, gradient_clip_val=CLIP,
                      logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, default_root_dir=path, **options)


def loader(task: Task) -> DataLoader[Any]:
    samples = data()
    return DataLoader(samples, batch_sampler=hpcpar.torch.BatchSampler(task.net, samples, False))


def plain(epochs: int) -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
    """The same training by one process of PyTorch."""
    module, losses, samples = net(), [], data()
    optimizer = torch.optim.AdamW(module.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(epochs):
        for i in range(SAMPLES // BATCH):
            some = samples[i * BATCH:(i + 1) * BATCH]
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(torch.stack([x for x, _ in some])),
                                            torch.tensor([y for _, y in some]))
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), CLIP)
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    return module, optimizer, losses


def close(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-8, atol=1e-11)


@pytest.fixture
def path(ranks: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(ranks.bcast(str(tmp_path_factory.mktemp("lightning"))))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trainer_equals_a_plain_loop(strategy: str, path: Path) -> None:
    """Losses, weights and the optimizer's state; a checkpoint that another plan goes on from."""
    task = Task(strategy)
    first = trainer(path, 2)
    first.fit(task, loader(task))
    module, optimizer, losses = plain(2)
    assert task.losses == pytest.approx(losses, 1e-9)
    first.save_checkpoint(path / "two.ckpt")
    kept = torch.load(path / "two.ckpt", weights_only=True)
    for name, value in module.state_dict().items():
        assert close(kept["state_dict"][f"net.{name}"], value), name
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            assert close(kept["optimizer_states"][0]["state"][number][key], value), key
    other = Task("data" if strategy != "data" else "filter")
    trainer(path, 4).fit(other, loader(other), ckpt_path=path / "two.ckpt", weights_only=True)
    assert other.losses == pytest.approx(plain(4)[2][len(losses):], 1e-9)


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")
def test_trainer_refuses_a_loss_of_one_rank_alone(path: Path) -> None:
    task = Task("data", whole=False)
    with pytest.raises(RunError, match="take means and sums over all ranks"):
        trainer(path, 1).fit(task, loader(task))


def test_misuse_of_the_trainer_is_refused(path: Path) -> None:
    task = Task("data")
    with pytest.raises(InputError, match="leave precision out"):
        trainer(path, 1, precision="bf16-mixed").fit(task, loader(task))
    task.net = nn.Identity()
    with pytest.raises(InputError, match="0 parallel modules; give it one"):
        parallel_part(task)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
def test_the_whole_modules_optimizer_state_is_resumed(strategy: str, kind: Any) -> None:
    """The state of a plain optimizer is loaded in parts, and put together again."""
    options = {"momentum": 0.9} if kind is not torch.optim.AdamW else {}
    module, samples = net(), data()[:BATCH]
    images, labels = torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])
    theirs = kind(module.parameters(), RATE, **options)

    def train() -> None:
        functional.cross_entropy(module(images), labels).backward()
        theirs.step()
        theirs.zero_grad()

    train()
    model = hpcpar.torch.parallelize(module, (2, 12, 12), BATCH, strategy)
    ours = kind(model.parameters(), RATE, **options)
    load_optimizer_state_dict(model, ours, copy.deepcopy(theirs.state_dict()))
    train()
    losses = functional.cross_entropy(model(images), model.local(labels), reduction="none")
    model.backward(hpcpar.torch.mean(losses, model))
    ours.step()
    for name, value in module.state_dict().items():
        assert close(model.state_dict()[name], value), name
    found = optimizer_state_dict(model, ours)
    for number, entries in theirs.state_dict()["state"].items():
        for key, value in entries.items():
            assert close(found["state"][number][key], value), key


def test_optimizer_tensors_of_another_shape_are_refused() -> None:
    model = hpcpar.torch.parallelize(net(), (2, 12, 12), BATCH, "data")
    optimizer = torch.optim.Adafactor(model.parameters(), RATE)
    images = torch.stack([x for x, _ in data()[:BATCH]])
    model.backward(hpcpar.torch.mean(model(images).square(), model))
    optimizer.step()
    with pytest.raises(InputError, match=r"Adafactor keeps .* in another shape"):
        optimizer_state_dict(model, optimizer)
