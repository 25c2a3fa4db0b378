"""`hpcpar.torch` refuses loops that would train wrongly without a word, on every rank."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from hpcpar.comm.world import world
from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor

from hpcpar.torch.parallelize import parallelize
from tests.mpi.test_torch import BATCH, SIZE, STRATEGIES, batch, parallel, plain

__all__ = ["batch"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_images_that_require_a_gradient_are_refused(strategy: str,
                                                    batch: tuple[Tensor, Tensor]) -> None:
    """A layer before the model, or a generator, would train wrongly."""
    images, model = batch[0].clone().requires_grad_() + 1, parallel(plain(), strategy)
    calls: list[Any] = [model, lambda x: model(model.local_images(x)),
                        lambda x: model.step(x, batch[1], lambda y, own: y.sum()),
                        lambda x: model.eval()(x)]
    for call in calls:
        with pytest.raises(InputError, match="which a parallel model does not compute: put the"):
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


def test_processes_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    if SIZE > 1:
        assert parallel(plain()).ranks == SIZE
        return
    with pytest.raises(InputError, match=r"torchrun started 4 processes .* mpiexec -n 4 python"):
        parallel(plain())
