"""Running statistics of a normalization that is called twice, parts without gradients, and buffers
that a forward pass changes, which are refused.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable

import pytest

from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import BATCH, STRATEGIES, close
from tests.unit.network.test_changed_buffers import SHAPE, Counts, Taught


class Twice(nn.Module):
    """A normalization behind two layers with images of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3, 2)
        self.norm, self.last = nn.BatchNorm2d(6), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.second(self.norm(self.first(x)).relu())).relu())


class Guided(nn.Module):
    """A trained part, which is multiplied by a function of itself that gradients do not enter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            gate = self.last(y).sigmoid()
        return self.last(y) * gate + y


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
@pytest.mark.parametrize("module_of", [Twice, Guided])
def test_it_trains_as_in_pytorch(module_of: Callable[[], nn.Module], strategy: str) -> None:
    torch.manual_seed(0)
    module = module_of().double()
    model = parallelize(copy.deepcopy(module), SHAPE, BATCH, strategy, batch_norm="sync")
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, module)]
    for _ in range(2):
        images = torch.randn(BATCH, *SHAPE, dtype=torch.float64)
        y, expected = model(images), module(images)
        model.backward(hpcpar.torch.mean(y.square(), model))
        expected.square().mean().backward()
        assert close(hpcpar.torch.gather(y, model).detach(), expected.detach())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    after = model.state_dict()
    assert all(close(after[name].double(), value.double())
               for name, value in module.state_dict().items())
    with torch.no_grad():
        y, expected = model.eval()(images), module.eval()(images)
    assert close(hpcpar.torch.gather(y, model), expected)


def test_changed_buffers_and_parts_without_gradients_are_refused() -> None:
    for module, message in ((Counts("in place"), "forward pass changes 'mean'"),
                            (Taught(), "no gradient reaches 'teacher")):
        with pytest.raises(InputError, match=message):
            parallelize(module, SHAPE, BATCH, "data")
        assert parallelize(module, SHAPE, BATCH, "data", forward_only=True) is not None


def test_statistics_of_no_module_are_refused() -> None:
    norm = nn.BatchNorm2d(2, affine=False)
    with pytest.raises(InputError, match="has no running_mean of its own"):
        parallelize(nn.Sequential(norm, nn.Conv2d(2, 2, 1), norm), SHAPE, BATCH, "data")
