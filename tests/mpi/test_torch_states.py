"""Parallel models whose forward pass changes buffers, as spectral normalization does, and models
with partly frozen parts that run whole.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from hpcpar.comm.world import world

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import hpcpar.torch
from hpcpar.errors import InputError
from hpcpar.torch.parallelize import parallelize

SIZE = world().size
BATCH, SHAPE = 4 if SIZE < 5 else 9, (2, 8, 7)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm`:FutureWarning",
                                        "ignore:`torch.nn.utils.weight_norm`:FutureWarning")


class Judge(nn.Sequential):
    """A discriminator with normalized spectra; PyTorch has two forms of them."""

    def __init__(self, normal: Callable[..., nn.Module]) -> None:
        super().__init__(normal(nn.Conv2d(2, 4, 3, padding=1)), nn.LeakyReLU(0.2),
                         nn.BatchNorm2d(4), normal(nn.Conv2d(4, 5, 3, 2, 1)), nn.Flatten(),
                         normal(nn.Linear(80, 3), n_power_iterations=2))


class Decaying(nn.Module):
    """Halves a gain of its weights in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3)
        self.register_buffer("gain", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.gain = 0.5 * self.gain
        w = (self.gain * self.last.weight).sin()
        return nn.functional.conv2d(self.first(x), w, self.last.bias).tanh()


class Tuned(nn.Module):
    """Attention of which a part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.attention.in_proj_weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        return self.last(self.attention(y, y, y, need_weights=False)[0].mean(1))


MAKES: dict[str, Callable[[], nn.Module]] = {
    "parametrized": lambda: Judge(nn.utils.parametrizations.spectral_norm),
    "by hooks": lambda: Judge(nn.utils.spectral_norm),
    "halved": Decaying, "partly frozen": Tuned}


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(name: str) -> nn.Module:
    torch.manual_seed(4)
    return MAKES[name]().double()


def trained(pair: list[Any], step: int) -> None:
    """One step of both models."""
    alone, parallel = pair
    images = numbers(step, BATCH, *SHAPE)
    y = alone(images)
    targets = numbers(step + 9, *y.shape)
    (y - targets).square().mean().backward()
    hpcpar.torch.mean((parallel(images) - parallel.local(targets)).square(), parallel).backward()
    for model in pair:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
        optimizer.step()
        optimizer.zero_grad()


def same_state(alone: nn.Module, parallel: Any) -> None:
    saved = parallel.state_dict()
    assert saved.keys() == alone.state_dict().keys()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"recompute": 1}], ids=["", "recompute"])
@pytest.mark.parametrize("strategy", ["data", "spatial", "filter"])
@pytest.mark.parametrize("name", MAKES)
def test_buffers_change_as_in_pytorch(name: str, strategy: str, options: dict[str, int]) -> None:
    """Also in a loop that goes on from a state, and not in evaluation."""
    pair: list[Any] = [made(name), parallelize(made(name), SHAPE, BATCH, strategy,
                                               batch_norm="sync", **options)]
    before = copy.deepcopy(pair[0].state_dict())
    for step in range(4):
        if step == 2:
            state, pair[1] = pair[1].state_dict(), parallelize(made(name), SHAPE, BATCH, strategy,
                                                               batch_norm="sync", **options)
            pair[1].load_state_dict(state)
        trained(pair, step)
    same_state(*pair)
    assert {n for n, b in pair[0].named_buffers() if not torch.equal(b, before[n])} == {
        n for n, _ in pair[0].named_buffers()}
    for model in pair:
        model.eval()
    images = numbers(20, BATCH, *SHAPE)
    torch.testing.assert_close(hpcpar.torch.gather(pair[1](images), pair[1]), pair[0](images),
                               rtol=1e-9, atol=1e-12)
    same_state(*pair)


def test_an_average_has_buffers_of_its_own() -> None:
    pair: list[Any] = [made("parametrized"), parallelize(made("parametrized"), SHAPE, BATCH,
                                                         batch_norm="sync")]
    averages = [AveragedModel(model) for model in pair]
    trained(pair, 0)
    same_state(*(average.module for average in averages))
    same_state(*pair)


def test_a_buffer_changes_once_in_a_batch() -> None:
    if BATCH < 2 * SIZE:
        pytest.skip("no two micro-batches")
    model = parallelize(made("by hooks"), SHAPE, BATCH, "data", microbatches=2)
    with pytest.raises(InputError, match=r"'0\.weight_u' changes once in a batch, but a batch "
                                         "has 2 micro-batches: plan with microbatches=1"):
        model(numbers(0, BATCH, *SHAPE))


def test_a_part_that_changes_buffers_has_the_models_mode() -> None:
    """Parts of PyTorch's modules in evaluation leave their buffers."""
    model = parallelize(made("by hooks"), SHAPE, BATCH, "data")
    dict(model.named_modules())["3"].eval()
    with pytest.raises(InputError, match="'3' is in evaluation mode and the model in training"):
        model(numbers(0, BATCH, *SHAPE))
    model.eval()
    dict(model.named_modules())["3"].train()
    with pytest.raises(InputError, match="'3' is in training mode and the model in evaluation"):
        model(numbers(0, BATCH, *SHAPE))
