"""The loss scale grows and falls as PyTorch's GradScaler does."""

from __future__ import annotations

import numpy as np
import pytest

from hpcpar.kernels import backend
from hpcpar.runtime.loss_scale import GROWTH_INTERVAL, LossScale, ScaleState


@pytest.mark.parametrize("chance", [0.0, 0.0005, 0.4])
def test_the_scale_is_gradscalers(chance: float) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    overflows = np.random.default_rng(2).random(2 * GROWTH_INTERVAL + 5) < chance
    weight = torch.zeros(2, requires_grad=True)
    theirs, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], 1.0)
    ours, gradient = LossScale(backend("cpu")), np.zeros(2, np.float32)
    for i, overflow in enumerate(overflows[:300] if chance > 0.1 else overflows):
        weight.grad = theirs.scale(torch.full((2,), np.inf if overflow else 3.0))
        before = weight.detach().clone()
        theirs.step(optimizer)
        theirs.update()
        gradient[:] = (np.inf if overflow else 3.0) * ours.state.scale
        ours.unscale(gradient)
        assert ours.skips == overflow == bool((before == weight).all())
        assert overflow or (gradient == 3).all()
        ours.end()
        assert ours.state == (theirs.get_scale(), theirs.state_dict()["_growth_tracker"],
                              overflows[:i + 1].sum())


def test_the_scale_stays_a_float32() -> None:
    scale = LossScale(backend("cpu"))
    for _ in range(2):
        scale.state = ScaleState(2.0**127, GROWTH_INTERVAL - 1)
        scale.end()
        assert scale.state == (2.0**127, 0, 0)
