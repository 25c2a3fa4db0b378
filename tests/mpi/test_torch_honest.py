"""`hpcpar.torch` refuses loops that would train wrongly without a word, on every rank."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
from typing import Any

import pytest

from hpcpar.comm.world import world
from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import swa_utils

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize
from tests.mpi import test_torch
from tests.mpi.test_torch import BATCH, SIZE, STRATEGIES, close, loss_of, parallel, plain, train

batch = test_torch.batch


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_images_that_require_a_gradient_are_refused(strategy: str,
                                                    batch: tuple[Tensor, Tensor]) -> None:
    """A layer before the model, or a generator, would train wrongly."""
    images, model = batch[0].clone().requires_grad_() + 1, parallel(plain(), strategy)
    calls: list[Any] = [model, lambda x: model(model.local_images(x)),
                        lambda x: model.step(x, batch[1], lambda y, own: y.sum()),
                        lambda x: model.eval()(x)]
    for call in calls:
        with pytest.raises(InputError, match=r"which the plan leaves out: make .*input_gradients"):
            call(images)
    with torch.no_grad():
        assert not model(images).requires_grad
    assert model.train()(images.detach()).requires_grad


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_different_samples_are_refused(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    """An unseeded loader under any plan, in the first iteration or, later, after a while; ranks
    that read samples, or boxes, by themselves.
    """
    seeded = torch.Generator().manual_seed(world().rank)
    order, model = torch.randperm(BATCH, generator=seeded), parallel(plain(), strategy)
    message = "ranks 0 and 1 hold different images as the batch: seed the loader's order"
    with pytest.raises(InputError, match=message):
        model(batch[0][order])
    with pytest.raises(InputError, match=message):
        model.step(batch[0][order], batch[1], lambda y, own: y.sum())
    assert not model.engine.iterations
    model.engine.iterations = 50
    model(batch[0][order])
    model.engine.iterations = 100
    with pytest.raises(InputError, match=message):
        model(batch[0][order])
    assert model.eval()(batch[0][order]) is not None


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_different_labels_are_refused(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    """Before the optimizer's first step: of images, of numbers, of micro-batches, in any order."""
    model = parallel(plain(), strategy)
    message = "ranks 0 and 1 hold different labels as the batch: seed the loader's order"
    for labels in batch[1] + world().rank, torch.rand(BATCH, 3) + world().rank:
        model.engine.iterations = 0
        with pytest.raises(InputError, match=message):
            model.step(batch[0], labels, lambda y, own: y.sum())
        own = model.local(labels)  # before the forward pass
        loss = hpcpar.torch.sum(model(batch[0]).sum(), model)
        assert len(own) == len(model.engine.own_rows)
        with pytest.raises(InputError, match=message):
            loss.backward()
        loss = hpcpar.torch.sum(model(batch[0]).sum(), model)
        model.local(batch[1])
        model.local(labels)
        with pytest.raises(InputError, match=message):
            loss.backward()
    model.eval()
    model.local(labels)
    model.train()
    model.backward(loss_of(model)(model(batch[0]), model.local(batch[1])))
    model.engine.iterations = 50
    hpcpar.torch.sum(model(batch[0]).sum() + 0 * model.local(labels).sum(), model).backward()
    model.engine.iterations = 100
    loss = hpcpar.torch.sum(model(batch[0]).sum() + 0 * model.local(labels).sum(), model)
    with pytest.raises(InputError, match=message):
        loss.backward()


@pytest.mark.skipif(SIZE not in (2, 4), reason="pairs of ranks share samples")
def test_different_boxes_of_a_sample_are_refused(batch: tuple[Tensor, Tensor]) -> None:
    """Ranks that get single samples, and ranks that hold the same box."""
    model = parallelize(plain().double(), (2, 12, 12), 6, "filter" if SIZE == 2 else "grid:2x2")
    images = batch[0][:6]
    some = images[torch.from_numpy(model.engine.samples)]
    model(some)
    name = "the batch" if SIZE == 2 else "sample [03] of the batch"
    with pytest.raises(InputError, match=f"ranks . and . hold different images as {name}"):
        model(some + world().rank)
    loss = hpcpar.torch.sum(model(some).sum(), model)
    model.local(torch.full((len(some),), world().rank))
    with pytest.raises(InputError, match=f"ranks . and . hold different labels as {name}"):
        loss.backward()


def test_processes_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    if SIZE > 1:
        assert parallel(plain()).ranks == SIZE
        return
    with pytest.raises(InputError, match=r"torchrun started 4 processes .* mpiexec -n 4 python"):
        parallel(plain())


class Normalized(nn.Module):
    """Batch normalization, and a parameter and a buffer that the schedule does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.last = nn.Linear(6 * 36, 5)
        self.register_buffer("unused", torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.last(x.flatten(1))


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
@pytest.mark.parametrize("with_buffers", [False, True])
def test_averages_of_weights_are_pytorchs(with_buffers: bool, strategy: str,
                                          batch: tuple[Tensor, Tensor]) -> None:
    """`AveragedModel` holds a deep copy; it evaluates and saves the averages."""
    torch.manual_seed(2)
    module = Normalized().double()
    model = parallel(module, strategy)
    average = swa_utils.get_ema_multi_avg_fn(0.9)
    ours, theirs = (swa_utils.AveragedModel(each, multi_avg_fn=average, use_buffers=with_buffers)
                    for each in (model, module))
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, module)]
    for _ in range(3):
        train(model, module, batch, optimizers)
        ours.update_parameters(model)
        theirs.update_parameters(module)
    states = ours.state_dict(), theirs.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(close(value, states[1][name]) for name, value in states[0].items())
    y = hpcpar.torch.gather(ours.eval()(batch[0]), ours.module)
    assert close(y, theirs.eval()(batch[0]).detach())
    assert all(close(value, module.state_dict()[name])
               for name, value in model.state_dict().items())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_deep_copy_trains_by_itself(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(plain(), strategy)
    model.get_parameter("0.bias").requires_grad_(False)
    before, copied = model.state_dict(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(copied.parameters(), 0.1)
    copied.backward(loss_of(copied)(copied(batch[0]), copied.local(batch[1])))
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    changed = [name for name, value in copied.state_dict().items()
               if not torch.equal(value, before[name])]
    assert changed == ["0.weight", "4.weight", "4.bias"]


def test_a_loss_of_an_evaluation_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(plain())
    model.eval()
    loss = loss_of(model)(model(batch[0]), model.local(batch[1]))
    with pytest.raises(InputError, match=r"the loss has no gradient: call model.train\(\) before"):
        model.backward(loss)


def test_features_are_a_number_or_a_shape() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 5)).double()
    seeded = torch.Generator().manual_seed(3)
    batch = (torch.randn(BATCH, 10, dtype=torch.float64, generator=seeded),
             torch.randint(0, 5, (BATCH,), generator=seeded))
    for shape in 10, (10,):
        model = parallelize(module, shape, BATCH, "filter")
        train(model, module, batch, [torch.optim.SGD(each.parameters(), 0.1)
                                     for each in (model, module)])
        state = model.state_dict()
        assert all(close(state[name], value) for name, value in module.state_dict().items())


def test_pickling_says_state_dict() -> None:
    model = parallel(plain())
    for save in pickle.dumps, copy.copy, lambda each: torch.save(each, io.BytesIO()):
        with pytest.raises(InputError, match="cannot be pickled: save model"):
            save(model)
    torch.save(model.state_dict(), io.BytesIO())


def test_tensors_of_another_shape_are_refused() -> None:
    model = parallel(Normalized())
    for name in "unused", "norm.running_mean":
        with pytest.raises(InputError, match=rf"1 have a different shape \({name}\)"):
            model.load_state_dict(model.state_dict() | {name: torch.zeros(7)})


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_lbfgs_trains_as_in_pytorch_or_is_refused(strategy: str,
                                                  batch: tuple[Tensor, Tensor]) -> None:
    """It multiplies gradients of all weights, of which a rank may hold a part only."""
    images, labels = batch
    module = plain().double()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    cut = any(p.numel() < module.get_parameter(name).numel()
              for name, p in model.named_parameters())
    assert cut == (strategy == "filter" and SIZE > 1) or strategy == "spatial"
    ours, theirs = (torch.optim.LBFGS(each.parameters(), 0.1, 4) for each in (model, module))

    def our_loss() -> Tensor:
        ours.zero_grad()
        loss = loss_of(model)(model(images), model.local(labels))
        model.backward(loss)
        return loss

    def their_loss() -> Tensor:
        theirs.zero_grad()
        loss = functional.cross_entropy(module(images), labels)
        loss.backward()
        return loss

    if cut:
        with pytest.raises(InputError, match="LBFGS computes the update of a weight from other"):
            ours.step(our_loss)
        torch.optim.SGD(model.parameters(), 0.1).step()
        return
    for _ in range(2):
        ours.step(our_loss)
        theirs.step(their_loss)
    state = model.state_dict()
    assert all(close(state[name], value) for name, value in module.state_dict().items())


class Standardized(nn.Module):
    """A fixed mean in a formula, a table in attention, a vector in a layer and in attention, and a
    counter that no output reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.register_buffer("table", torch.rand(36, 4))
        self.register_buffer("both", torch.rand(4, 1, 1))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x - self.mean) + self.both
        tokens = x.cumsum(2).flatten(2).transpose(1, 2) + self.both.flatten() + self.table
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)


@pytest.mark.parametrize("name", ["mean", "table", "both", "calls"])
def test_other_numbers_than_the_plans_are_refused(name: str) -> None:
    """A part that runs whole has its buffers as numbers; others count, or nothing reads them."""
    torch.manual_seed(0)
    model = parallelize(Standardized(), (3, 8, 8), 2 * SIZE, "data", "cori-knl")
    state = model.state_dict()
    model.load_state_dict(state)
    state[name] = state[name] + 1
    if name not in ("table", "both"):
        plain_module = Standardized()
        plain_module.load_state_dict(state)
        model.load_state_dict(state)
        images = torch.rand(2 * SIZE, 3, 8, 8)
        torch.testing.assert_close(model.eval()(images), model.local(plain_module(images)))
        return
    with pytest.raises(InputError, match=f"'{name}' differs from its value when the module was"):
        model.load_state_dict(state)


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")
def test_other_numbers_on_another_rank_are_refused() -> None:
    torch.manual_seed(world().rank)
    with pytest.raises(InputError, match="differs from its value when the module was"):
        parallelize(Standardized(), (3, 8, 8), 2 * SIZE, "data", "cori-knl")
