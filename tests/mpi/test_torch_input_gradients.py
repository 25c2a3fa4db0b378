"""Layers before a parallel module train as in PyTorch: `parallelize(..., input_gradients=True)`."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest

from hpcpar.comm.world import world
from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize

SIZE = world().size
BATCH, SHAPE = 5 if SIZE < 5 else 9, (2, 8, 7)


class Critic(nn.Module):
    """Two convolutions read the images, and a normalization by the batch follows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 5, padding=2)
        self.norm, self.last = nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.a(x) * self.b(x).sigmoid()).relu())


def made(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "features":
        return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    critic = Critic().double()
    return critic.requires_grad_(False) if kind == "frozen" else critic


def generator(kind: str) -> nn.Module:
    torch.manual_seed(2)
    if kind == "features":
        return nn.Sequential(nn.Linear(5, 12), nn.Tanh()).double()
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 2, 1)).double()


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "strategy"), [
    *((kind, strategy) for kind in ("images", "frozen") for strategy in
      ("data", "spatial", "filter")), ("features", "data"), ("features", "filter")])
def test_a_generator_before_the_model_trains_as_pytorch(kind: str, strategy: str) -> None:
    """The images are also an own term of the loss; the second pass leaves the generator out."""
    shape = (12,) if kind == "features" else SHAPE
    noise = numbers(3, BATCH, *((5,) if kind == "features" else (3, *SHAPE[1:])))
    critics: list[Any] = [made(kind), parallelize(made(kind), shape, BATCH, strategy,
                                                  input_gradients=True)]
    generators = [generator(kind), generator(kind)]
    optimizers = [torch.optim.SGD([*c.parameters(), *g.parameters()], 0.1, momentum=0.9)
                  for c, g in zip(critics, generators, strict=True)]
    for _ in range(3):
        for critic, before, optimizer in zip(critics, generators, optimizers, strict=True):
            images = before(noise)
            y = critic(images)
            parallel = critic is critics[1]
            targets = numbers(4, *critics[0](images.detach()).shape)
            errors = (y - (critic.local(targets) if parallel else targets)).square()
            loss = hpcpar.torch.mean(errors, critic) if parallel else errors.mean()
            (loss + images.square().mean()).backward()
            if kind != "frozen":
                y = critic(images.detach())
                loss = hpcpar.torch.mean(y.abs(), critic) if parallel else y.abs().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        for own, value in zip(generators[1].parameters(), generators[0].parameters(), strict=True):
            torch.testing.assert_close(own, value, rtol=1e-9, atol=1e-12)
    state = critics[1].state_dict()
    for name, parameter in critics[0].named_parameters():
        torch.testing.assert_close(state[name], parameter.detach(), rtol=1e-9, atol=1e-12)


def test_micro_batches_have_their_part_of_the_gradient() -> None:
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3)).double()
    model = parallelize(copy.deepcopy(plain), SHAPE, BATCH, "spatial", input_gradients=True,
                        microbatches=2, order="gpipe")
    plain.load_state_dict(model.state_dict())
    own, images = (numbers(3, BATCH, *SHAPE).requires_grad_() for _ in range(2))
    hpcpar.torch.mean(model(own).square(), model).backward()
    plain(images).square().mean().backward()
    torch.testing.assert_close(own.grad, images.grad, rtol=1e-9, atol=1e-12)


def test_images_that_require_a_gradient_are_refused_where_it_would_be_lost() -> None:
    images = numbers(3, BATCH, *SHAPE).requires_grad_()
    plain = parallelize(made("images"), SHAPE, BATCH, "data")
    with pytest.raises(InputError, match=r"make the model with .*input_gradients=True"):
        plain(images)
    model = parallelize(made("images"), SHAPE, BATCH, "data", input_gradients=True)
    with pytest.raises(InputError, match=r"which model\(images\) in training mode computes"):
        model.step(images, torch.zeros(BATCH), functional.mse_loss)
    with pytest.raises(InputError, match=r"which model\(images\) in training mode computes"):
        model.eval()(images)
    if SIZE > 1:
        with pytest.raises(InputError, match="require a gradient: pass the whole batch, 5x2x8x7"
                           if BATCH == 5 else "pass the whole batch, 9x2x8x7"):
            model.train()(model.local_images(images))
