"""Ranks whose training loops differ end in an error that names ranks and places, at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcpar.torch
from hpcpar.comm.world import world
from hpcpar.errors import RunError
from hpcpar.torch import ParallelModule, parallelize

SIZE, BATCH = world().size, 12
ODD = SIZE - 1
several = pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to differ from")


def model_of(strategy: str = "data") -> ParallelModule:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 8))
    return parallelize(module.double(), (2, 8, 8), BATCH, strategy)


def images() -> Tensor:
    return torch.randn(BATCH, 2, 8, 8, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(1))


def iterate(model: ParallelModule, factor: float = 1.0) -> None:
    outputs, labels = model(images()), model.local(torch.arange(BATCH) % 8)
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    model.backward(hpcpar.torch.mean(losses, model) * factor)


def one_more_forward(model: ParallelModule) -> None:
    model(images())


def without_backward(model: ParallelModule) -> None:
    """As after an error that this rank alone catches."""
    hpcpar.torch.mean(model(images()), model)


def stops(model: ParallelModule) -> None:
    model.state_dict()


def clips(model: ParallelModule) -> None:
    hpcpar.torch.clip_grad_norm_(model, 1.0)


@several
@pytest.mark.parametrize(("call", "place", "others"), [
    (one_more_forward, "the forward pass of iteration 4, a sum over ranks",
     "the forward pass of iteration 3, a sum over ranks"),
    (stops, "the backward pass of iteration 2, the state of the module",
     "the start of iteration 3, the comparison of samples"),
    (clips, "the backward pass of iteration 2, the norm of the gradients",
     "the start of iteration 3, the comparison of samples")])
def test_a_call_on_one_rank_alone_is_refused(call: Callable[[ParallelModule], None], place: str,
                                             others: str) -> None:
    model = model_of()
    for _ in range(2):
        iterate(model)
    with pytest.raises(RunError, match="not at the same place") as caught:
        if world().rank == ODD:
            call(model)
        iterate(model)
    text = str(caught.value)
    assert f"rank {ODD} is at {place}" in text and caught.value.everywhere
    assert f" at {others}" in text


@several
def test_a_backward_pass_that_one_rank_leaves_out_is_found() -> None:
    model = model_of()
    iterate(model)
    with pytest.raises(RunError, match="not at the same place") as caught:
        if world().rank == ODD:
            without_backward(model)
        iterate(model)
        iterate(model)
    text = str(caught.value)
    assert f"rank {ODD} is at the start of iteration 3, the comparison of samples" in text
    assert "at the forward pass of iteration 2, the comparison of losses" in text
    iterate(model_of())  # a program that catches the error may make another model


@pytest.mark.parametrize("odd", sorted({0, ODD}))
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_named(odd: int, factor: float) -> None:
    model = model_of()
    iterate(model)
    with pytest.raises(RunError) as caught:
        iterate(model, factor if world().rank == odd else 1.0)
    assert str(caught.value).startswith(
        f"the loss is {factor} in iteration 2 (rank {odd}, 1 of {SIZE} ranks)")
    iterate(model)  # the error is the same on all ranks: the loop may go on


@pytest.mark.parametrize("strategy", ["data", "filter"])
def test_a_gradient_that_is_not_finite_is_named(strategy: str) -> None:
    """Without `model.backward`; equal outputs have equal gradients, even if these are NaN."""
    model = model_of(strategy)
    with pytest.raises(RunError, match="the gradient of the loss is nan in iteration 1 .rank 0, "
                                       f"{SIZE} of {SIZE} ranks"):
        (model(torch.ones(BATCH, 2, 8, 8, dtype=torch.float64)) * float("nan")).sum().backward()


def test_sums_of_few_and_of_many_entries() -> None:
    model = model_of()
    for shape in (), (1,), (3, 2), (50,):
        own = torch.full(shape, 1.0 + world().rank, dtype=torch.float64)
        total = hpcpar.torch.sum(own, model)
        assert total.shape == own.shape and bool((total == SIZE * (SIZE + 1) / 2).all())


def test_values_of_any_size_are_shared() -> None:
    ranks = world()
    for size in (0, 1, 300, 400, 450, 500, 10**6):
        sent = bytes([ranks.rank % 256]) * (size if ranks.rank == ODD else 1)
        assert ranks.share("a test", sent) == {
            rank: bytes([rank % 256]) * (size if rank == ODD else 1) for rank in range(SIZE)}


def test_a_nan_that_one_rank_does_not_count_stays_out_of_a_sum(
        monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    monkeypatch.setattr(model.engine, "counts", world().rank == 0)
    own: Tensor = torch.tensor(1.0 if world().rank == 0 else float("nan"))
    assert float(hpcpar.torch.sum(own, model)) == 1.0


def test_a_defect_on_one_rank_ends_all() -> None:
    """As a crash while rank 0 plans: others would wait for the plan."""
    ranks = world()

    def divide() -> float:
        return 1 / (0 if ranks.rank == ODD else 1)

    error = ZeroDivisionError if ranks.rank == ODD else RunError
    with pytest.raises(error) as caught:
        ranks.agree(divide)
    assert caught.value.everywhere
    if ranks.rank != ODD:
        assert f"rank {ODD} on {ranks.hostname} failed with ZeroDivisionError" in str(caught.value)
