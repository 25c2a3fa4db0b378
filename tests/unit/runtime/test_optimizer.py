"""The schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.runtime.optimizer import BATCH_SCALING, SGD, WARMUP, RateSchedule


def rates(sgd: SGD, steps: int, epoch_steps: int) -> list[float]:
    return [sgd.rate_at(step, steps, epoch_steps) for step in range(steps)]


def test_the_rate_grows_in_the_first_quarter_of_an_epoch() -> None:
    found = rates(SGD(rate=0.8), 32, 16)
    assert found == pytest.approx([0.2, 0.4, 0.6] + 29 * [0.8])
    long = [SGD(rate=1.0).rate_at(step, 10**6, 10**5) for step in (WARMUP - 2, WARMUP)]
    assert long[0] < 1.0 == long[1]
    assert rates(SGD(rate=0.8, warmup=0), 32, 16) == pytest.approx(32 * [0.8])


def test_the_rate_does_not_depend_on_the_length_of_the_training() -> None:
    """The default does not depend on the length: who goes on with more epochs trains alike."""
    assert rates(SGD(), 40, 20) == rates(SGD(), 400, 20)[:40]


def test_steps_are_counted_in_epochs() -> None:
    found = rates(SGD(rate=1.0, schedule="step:2", warmup=0), 20, 4)
    assert found == pytest.approx(8 * [1.0] + 8 * [0.1] + 4 * [0.01])
    assert SGD(schedule="step:1").rate_at(4000, 4001, 10) == 0.0  # 400 steps: it underflows


def test_a_cosine_ends_at_zero() -> None:
    found = rates(SGD(rate=1.0, schedule=RateSchedule.COSINE, warmup=2), 102, 10)
    assert found[:3] == pytest.approx([0.5, 1.0, 1.0]) and found[52] == pytest.approx(0.5)
    assert sorted(found[2:], reverse=True) == found[2:] and 0 < found[-1] < 1e-3


def test_one_weird_trick_decays_after_each_quarter() -> None:
    found = rates(SGD(rate=1.0, schedule=RateSchedule.OWT, warmup=0), 8, 8)
    assert found == pytest.approx([250 ** (-i / 3) for i in (0, 0, 1, 1, 2, 2, 3, 3)])
    assert rates(SGD(rate=1.0, schedule=RateSchedule.CONSTANT, warmup=0), 8, 1) == 8 * [1.0]


@pytest.mark.parametrize("wrong", [{"rate": -1}, {"momentum": 1}, {"schedule": "step:0"},
                                   {"warmup": -1}, {"rate": math.nan}, {"decay": math.inf},
                                   {"momentum": math.nan}])
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="argument "):
        SGD(**wrong)


def test_rate_and_decay_grow_with_the_batch() -> None:
    """OWT, section 5: 8 times the batch of 128; its exact weight decay is 0.0014141888."""
    assert SGD().factors(1024) == (1.0, 1.0)
    linear, root = (SGD(rate=0.01, base_batch=128, scaling=s) for s in BATCH_SCALING)
    assert linear.factors(1024) == (8.0, 1.0) and linear.factors(64) == (0.5, 1.0)
    rate, decay = root.factors(1024)
    assert rate == decay == pytest.approx(8 ** 0.5)
    exact = (1 - (1 - root.rate * root.decay) ** 8) / (rate * root.rate)
    assert decay * root.decay == pytest.approx(exact, rel=1e-4)
    assert exact == pytest.approx(0.0014141888, rel=1e-7)
    with pytest.raises(InputError, match="argument "):
        SGD(base_batch=-1)
