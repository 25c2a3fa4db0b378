"""In evaluation, `hpcpar.torch` returns what the module returns in evaluation, or refuses it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import BATCH, STRATEGIES, close


class Ends(nn.Module):
    """Two heads behind layers that compute something else in evaluation, which all plans know."""

    def __init__(self, evaluated: str = "first") -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.block, self.drop = nn.Conv2d(6, 6, 3, padding=1), nn.Dropout(0.3)
        self.head, self.aux = nn.Conv2d(6, 3, 1), nn.Conv2d(6, 2, 1)
        self.evaluated = evaluated

    def path(self, x: Tensor) -> Tensor:
        """Stochastic depth as timm and as its authors write it."""
        if not self.training:
            return x
        drawn = x.new_empty(len(x), 1, 1, 1).bernoulli_(0.75)
        x = x * drawn.div_(0.75)
        return x.div(0.5) * (0.5 + torch.rand(len(x), 1, 1, 1, dtype=x.dtype)).floor_()

    def forward(self, x: Tensor) -> Any:
        x = self.norm(self.stem(x)).relu()
        x = x + self.path(self.drop(self.block(x)))
        y = self.head(x)
        if self.training:
            return {"out": y, "aux": self.aux(x)}
        return {"first": y, "second": [self.aux(x), y], "softmax": y.softmax(1), "twice": y * 2,
                }[self.evaluated]


def model_of(evaluated: str, strategy: str = "data", **options: Any) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    module = Ends(evaluated).double()
    return parallelize(module, (2, 12, 12), BATCH, strategy, **options), module


def images(count: int = BATCH) -> Tensor:
    return torch.randn(count, 2, 12, 12, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_returns_what_the_module_returns(strategy: str) -> None:
    model, module = model_of("first", strategy)
    trained = model(images())
    assert {*trained} == {"out", "aux"}
    model.backward(sum(hpcpar.torch.mean(y * y, model) for y in trained.values()))
    module.load_state_dict(model.state_dict())
    found, wanted = model.eval()(images()), module.eval()(images())
    assert close(hpcpar.torch.gather(found, model), wanted.detach())
    model, module = model_of("second", strategy)
    aux, y = model.eval()(images(BATCH - 1), incomplete=True)
    assert aux.shape[1] == model.train()(images())["aux"].shape[1]
    assert len(aux) == len(y) <= BATCH - 1


@pytest.mark.parametrize(("evaluated", "by"), [("softmax", r"aten.softmax.int"),
                                               ("twice", "a product with a number")])
def test_another_computation_is_refused(evaluated: str, by: str) -> None:
    """It trains; an evaluation would return the outputs of training."""
    message = rf"computes something else in evaluation than in training \({by}\); make forward"
    model, _ = model_of(evaluated)
    with pytest.raises(InputError, match=message):
        model.eval()(images())
    assert {*model.train()(images())} == {"out", "aux"}
    with pytest.raises(InputError, match=message):
        model_of(evaluated, forward_only=True)


class Always(nn.Module):
    """Drops, or takes the batch's statistics, in evaluation as in training."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(3)
        self.drops = drops

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.drops:
            return self.last(functional.dropout(x, 0.5))
        return self.last(functional.batch_norm(
            x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias,
            training=True))


@pytest.mark.parametrize(("drops", "by"), [(True, "aten.dropout"), (False, "aten.batch_norm")])
def test_training_in_evaluation_is_refused(drops: bool, by: str) -> None:
    """A plan's evaluation neither drops nor takes a batch's statistics."""
    model = parallelize(Always(drops).double(), (2, 12, 12), BATCH, "data")
    model(images())
    with pytest.raises(InputError, match=rf"in evaluation than in training \({by}"):
        model.eval()(images())
