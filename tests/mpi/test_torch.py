"""`hpcpar.torch`: a user's own loop over any plan equals plain PyTorch on one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.errors import InputError, RunError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from bench.torch_equality import check
from hpcpar.torch.parallelize import parallelize

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
SIZE = world().size
#: Some on every number of ranks, others on each.
SEEDS = [100 * SIZE + i for i in range(4 if SIZE <= 4 else 2)]
BATCH = 7 if SIZE < 8 else 9
#: Strategies that run on any number of ranks.
STRATEGIES = ["data", "filter", "spatial"] + ["pipeline"] * (SIZE in (2, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_module_trains_as_pytorch(seed: int, communicator: Communicator) -> None:
    faults = check(seed)
    assert not faults, "; ".join(faults)


class Deep(nn.Module):
    """Two heads on images of two sizes, as deep supervision has them, and dropout that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.second = nn.ConvTranspose2d(6, 4, 2, 2, groups=2)
        self.low, self.high = nn.Conv2d(6, 3, 1), nn.Conv2d(4, 3, 1)
        self.register_buffer("unused", torch.arange(3.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return {"out": self.high(self.second(x).relu()), "aux": self.low(x)}


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(6 * 36, 5))


def parallel(module: nn.Module, plan: str = "data", **options: Any) -> Any:
    return parallelize(module.double(), (2, 12, 12), BATCH, plan, **options)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(3)
    return (torch.randn(BATCH, 2, 12, 12, dtype=torch.float64, generator=seeded),
            torch.randint(0, 5, (BATCH,), generator=seeded))


def close(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-12))


def loss_of(model: Any) -> Any:
    return lambda y, labels: hpcpar.torch.mean(
        functional.cross_entropy(y, labels, reduction="none"), model)


def train(model: Any, module: nn.Module, batch: tuple[Tensor, Tensor],
          optimizers: list[torch.optim.Optimizer]) -> None:
    """Three steps of both."""
    images, labels = batch
    for _ in range(3):
        model.backward(loss_of(model)(model(images), model.local(labels)))
        functional.cross_entropy(module(images), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_labels_of_another_image_are_refused(batch: tuple[Tensor, Tensor]) -> None:
    """On every rank: labels of another output, and of a rank's part of the output."""
    model = parallel(Deep(), "spatial")
    labels = torch.zeros(BATCH, 12, 12, dtype=torch.int64)
    with pytest.raises(InputError, match=r"labels of 12x12 pixels for output 1, which has 6x6: "
                                         r"pass labels of 6x6, .*labels\[..., ::2, ::2\]"):
        model.local(labels, of=1)
    with pytest.raises(InputError, match="labels of 6x6 pixels for output 0, which has 12x12"):
        model.local(labels[:, ::2, ::2])
    with pytest.raises(InputError, match="for output 1, which has 6x6"):
        model.step(batch[0], [labels, labels], lambda outputs, own: outputs["out"].sum())
    rows, columns = (stop - start for start, stop in model._boxes.pixels(0)[1:])
    if world().size > 1:
        with pytest.raises(InputError, match=f"labels of {rows}x{columns} pixels for output 0"):
            model.local(labels[:, :rows, :columns])
    assert model.local(torch.zeros(BATCH, 7, 5)).shape[1:] == (7, 5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_outputs_of_different_sizes_train_as_pytorch(strategy: str,
                                                     batch: tuple[Tensor, Tensor]) -> None:
    """Deep supervision: each head has its loss, on this rank's box of it."""
    torch.manual_seed(world().rank)  # the weights are rank 0's
    images, module = batch[0], Deep().double()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    labels = torch.randint(0, 3, (BATCH, 12, 12), generator=torch.Generator().manual_seed(4))
    small = labels[:, ::2, ::2]
    mine, loss = model(images), loss_of(model)
    model.backward(loss(mine["out"], model.local(labels)) + 0.5 * loss(
        mine["aux"], model.local(small, of=1)))
    theirs = module(images)
    (functional.cross_entropy(theirs["out"], labels)
     + 0.5 * functional.cross_entropy(theirs["aux"], small)).backward()
    for optimizer in (torch.optim.SGD(p, 0.1) for p in (model.parameters(), module.parameters())):
        optimizer.step()
    state = model.state_dict()
    assert list(state) == list(module.state_dict())
    assert all(close(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_add_up_and_are_clipped_once(strategy: str,
                                               batch: tuple[Tensor, Tensor]) -> None:
    """As in PyTorch, a second backward pass adds to the first one's gradients; every parameter
    counts once in their norm.
    """
    images, labels = batch
    module = plain()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    for x in images, 2 * images:
        model.backward(loss_of(model)(model(x), model.local(labels)))
        functional.cross_entropy(module(x), labels).backward()
    norm = hpcpar.torch.clip_grad_norm_(model, 0.1)
    assert close(norm, nn.utils.clip_grad_norm_(module.parameters(), 0.1))
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.optim.SGD(module.parameters(), 0.1).step()
    state = model.state_dict()
    assert all(close(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_steps_may_use_micro_batches(order: str, batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch
    module = plain()
    strategy = "data" if SIZE == 1 else "pipeline" if SIZE < 4 else "spatial"
    model = parallel(module, strategy, microbatches=3, order=order)
    module.load_state_dict(model.state_dict())
    value = model.step(images, labels, loss_of(model))
    expected = functional.cross_entropy(module(images), labels)
    assert close(value, expected.detach())
    expected.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.optim.SGD(module.parameters(), 0.1).step()
    state = model.state_dict()
    assert all(close(state[name], value) for name, value in module.state_dict().items())
    if order == "1f1b" and model.engine.training.forward_end is None:
        with pytest.raises(InputError, match=r"call model.step\(images, labels, loss\)"):
            model(images)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evaluation_takes_fewer_samples(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    images, module = batch[0], plain()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    model.eval()
    with torch.no_grad():
        whole = hpcpar.torch.gather(model(images), model)
        assert close(whole, module.eval()(images))
        some, rows = model(images[:3], incomplete=True), model.engine.own_rows
        assert close(some, whole[rows[rows < 3]])
        assert (model.local(batch[1][:3], incomplete=True) == batch[1][rows[rows < 3]]).all()


def test_a_loss_over_gathered_outputs_compares_samples(batch: tuple[Tensor, Tensor]) -> None:
    """A loss of pairs of samples, which no sum over ranks gives."""
    images, module = batch[0], plain()
    model = parallel(module, "data")
    module.load_state_dict(model.state_dict())
    own, whole = hpcpar.torch.gather(model(images), model), module(images)
    model.backward((own @ own.T).square().mean())
    (whole @ whole.T).square().mean().backward()
    torch.optim.SGD(model.parameters(), 1e-3).step()
    torch.optim.SGD(module.parameters(), 1e-3).step()
    state = model.state_dict()
    assert all(close(state[name], value) for name, value in module.state_dict().items())


def test_every_sample_comes_once_an_epoch(ranks: World) -> None:
    """All ranks together read every sample of a full batch once, each the samples that it needs."""
    model = parallel(plain(), "data")
    data = [(torch.full((2, 12, 12), float(i)), i) for i in range(3 * BATCH + 2)]
    sampler = hpcpar.torch.BatchSampler(model, data, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)  # type: ignore[arg-type]
    for _ in range(2):
        mine = []
        for images, labels in loader:
            assert len(model(images.double())) == len(model.local(labels))
            mine += [float(x) for x in model.local_images(images)[:, 0, 0, 0]]
        everyone = [x for each in ranks.comm.allgather(mine) for x in each]
        assert len(everyone) == len(set(everyone)) == 3 * BATCH
    assert sampler.epoch == 2 and len(loader) == 3


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")
def test_a_loss_of_one_rank_alone_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch
    model = parallel(plain(), "data")
    with pytest.raises(RunError, match="take means and sums over all ranks"):
        model.backward(functional.cross_entropy(model(images), model.local(labels)))
    model = parallel(plain(), "filter")
    with pytest.raises(RunError, match="hold the same outputs, but the gradients of their losses "
                                       "differ"):
        (model(images) * (1.0 + world().rank)).sum().backward()


def test_misuse_is_refused_in_one_line(batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch
    model = parallel(plain(), "data")
    first = loss_of(model)(model(images), model.local(labels))
    model(images)
    with pytest.raises(RunError, match="call backward right after the forward pass"):
        first.backward()
    with pytest.raises(InputError, match="keeps its device and number format"):
        model.float()
    with pytest.raises(InputError, match="takes a full batch"):
        model(images[:3], incomplete=True)
    with pytest.raises(InputError, match="images of shape"):
        model(images[:, :, :5])
    with pytest.raises(InputError, match="1 tensors are missing"):
        model.load_state_dict({k: v for k, v in model.state_dict().items() if k != "0.bias"})
    with pytest.raises(InputError, match="synchronization sharded"):
        parallel(plain(), "data", synchronization="sharded")
    with pytest.raises(InputError, match=f"the plan is for batches of {BATCH}, not {BATCH + 1}"):
        parallelize(plain().double(), (2, 12, 12), BATCH + 1, model.plan)
    with pytest.raises(InputError, match="precision 'fp32': the module's parameters are in fp64"):
        parallel(plain(), "data", precision="fp32")


class Twice(nn.Module):
    """A convolution that is called on two sizes, a normalization and a linear layer, each used
    twice, and a parameter that two modules have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.other = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, 2, 1, bias=False)
        self.same = nn.Conv2d(4, 4, 3, 1, 1, bias=False)
        self.gate, self.last = nn.Linear(4, 4), nn.Linear(4, 5)
        self.same.weight = self.other.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(self.stem(x))).relu()
        x = self.norm(self.conv(self.same(self.other(x)))).relu()
        gate = self.gate(x.mean((2, 3))) + self.gate(x.amax((2, 3)))
        return self.last(gate.sigmoid() * x.mean((2, 3)))


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_tied_weights_train_as_in_pytorch(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    module = Twice().double()
    model = parallel(module, strategy, microbatches=2 if SIZE == 2 else 1)
    module.load_state_dict(model.state_dict())
    train(model, module, batch, [torch.optim.SGD(p, 0.1, 0.9) for p in (
        model.parameters(), module.parameters())])
    after = model.state_dict()
    assert list(after) == list(module.state_dict())
    assert len([*model.parameters()]) == len([*module.parameters()])
    assert all(close(after[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_module_may_end_in_log_softmax(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    module = nn.Sequential(*plain(), nn.LogSoftmax(1)).double()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    train(model, module, batch, [torch.optim.SGD(p, 0.1, 0.9) for p in (
        model.parameters(), module.parameters())])
    after = model.state_dict()
    assert all(close(after[name], value) for name, value in module.state_dict().items())


class Filtered(nn.Module):
    """A trained layer before frozen ones, of parameters and of a buffer, and one behind them."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, bias=False), norm
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 100, 5)
        self.register_buffer("blur", torch.rand(4, 1, 3, 3))
        self.norm.requires_grad_(False)
        self.second.requires_grad_(False)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(x)).relu())
        return self.last(functional.conv2d(x, self.blur, padding=1, groups=4).flatten(1))


def by_batch() -> nn.Module:
    return Filtered(nn.BatchNorm2d(4))


def by_group() -> nn.Module:
    return Filtered(nn.GroupNorm(2, 4))


def begun() -> nn.Module:
    """A network whose first layers are frozen."""
    module = plain()
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", [by_batch, by_group, begun])
def test_frozen_parameters_do_not_change(make: Any, strategy: str,
                                         batch: tuple[Tensor, Tensor]) -> None:
    if make is by_batch and strategy == "pipeline":
        pytest.skip("micro-batches have statistics of their own")
    module = make().double()
    model = parallel(module, strategy)
    before = model.state_dict()
    module.load_state_dict(before)
    train(model, module, batch, [torch.optim.AdamW(p, 0.1) for p in (
        model.parameters(), module.parameters())])
    after, frozen = model.state_dict(), {n for n, p in module.named_parameters()
                                         if not p.requires_grad} | {"blur"}
    for name, value in module.state_dict().items():
        assert close(after[name], value), name
        assert name not in frozen or close(value, before[name])
    for name, p in model.named_parameters():
        assert p.requires_grad == (name not in frozen)
        assert p.requires_grad or p.grad is None


@pytest.fixture
def path(ranks: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = ranks.comm.bcast(str(tmp_path_factory.mktemp("torch")) if ranks.rank == 0 else "")
    yield Path(folder) / "run.h5"


def test_a_loops_record_can_be_compared(path: Path, batch: tuple[Tensor, Tensor]) -> None:
    """The time of loss and optimizer is a row of its own."""
    from hpcpar.report.compare import compare_one
    from hpcpar.train.record_file import load_record

    images, labels = batch
    model = parallel(plain(), "data")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with model.record(str(path)):
        for _ in range(4):
            model.backward(loss_of(model)(model(images), model.local(labels)))
            optimizer.step()
            optimizer.zero_grad()
    if world().rank == 0:
        path.with_suffix(".txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run record"), \
            model.record(str(path.with_suffix(".txt"))):
        pass
    if world().rank == 0:
        assert path.with_suffix(".txt").read_text() == "mine"
        record = load_record(str(path))
        assert record.iterations == 4 and np.isfinite(record.loss).all()
        row = compare_one(record)
        assert row.phases["outside"]["compute"].measured_s > 0
        assert row.phases["backward"]["compute"].measured_s > 0
