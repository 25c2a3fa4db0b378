"""Random plans on random machines: predictions equal simulations of all ranks."""

from __future__ import annotations

import pytest

from bench.random_predictions import TOLERANCE, drawn_case


@pytest.mark.parametrize("seed", range(12))
def test_a_random_prediction_equals_the_simulation(seed: int) -> None:
    case = drawn_case(seed, most_ranks=48, networks=("lenet5",))
    assert case.difference() <= TOLERANCE, case.words


def test_cases_follow_from_the_seed() -> None:
    first, again, other = (drawn_case(seed, 16, ("lenet5",)).words for seed in (3, 3, 4))
    assert first == again != other
