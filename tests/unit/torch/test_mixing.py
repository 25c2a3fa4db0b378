"""Which optimizers treat each number of a parameter alone, found by a trial."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra", exc_type=ImportError)

from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

from hpcpar.torch.mixing import mixes, refuse_mixing  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9, "nesterov": True, "lr": 0.1}}
ALONE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "ASGD", "Rprop",
         "RMSprop")


class Lars(torch.optim.SGD):
    """A rate that follows the norm of a parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.detach().norm() / p.grad.norm())
        super().step()


@pytest.mark.parametrize("name", ALONE)
def test_an_optimizer_that_treats_numbers_alone_passes(name: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert not mixes(getattr(torch.optim, name)(parameters, **OPTIONS.get(name, {})))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adafactor, Lars], ids=str)
def test_an_optimizer_that_mixes_numbers_is_found(kind: Any) -> None:
    assert mixes(kind([torch.nn.Parameter(torch.ones(3))], lr=0.1))


def test_a_model_can_end_while_an_optimizer_steps() -> None:
    models: list[Any] = []
    ending = register_optimizer_step_pre_hook(lambda *_: models.clear())
    models.append(torch.nn.Linear(2, 2))
    refuse_mixing(models[0])
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], 0.5).step()
    ending.remove()
    assert not models and torch.equal(parameter, torch.full((3,), 0.5))
