"""How late ranks are that take turns on cores: by what they computed, and by how many others they
wait for.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.timeline.lateness import Lateness, partners
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.outline import outline
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Kind

LENET = NetworkSpec("lenet5", (1, 28, 28), 10)


@pytest.mark.parametrize(("strategy", "ranks", "found"), [
    ("data", 4, {Kind.ALLREDUCE: 1.0}), ("filter", 4, {Kind.ALLGATHER: 1.0, Kind.REDUCE_SCATTER: 1.0}),
    ("grid:2x2", 4, {Kind.ALLGATHER: 1 / 3, Kind.ALLREDUCE: 1 / 3}), ("domain:5x1", 5, {Kind.HALO: 2 / 4}),
])
def test_a_rank_waits_for_its_group_or_its_neighbours(strategy: str, ranks: int,
                                                      found: dict[Kind, float]) -> None:
    network = LENET.build()
    plan = make_plan(LENET, strategy, ranks, 20, network=network)
    moves = [step for step in outline(network, plan, lambda _: ("ring", 1)).steps
             if isinstance(step, Move)]
    for kind, part in found.items():
        parts = [float(partners(move, ranks)) for move in moves if move.pattern.kind is kind]
        assert parts and parts == pytest.approx([part] * len(parts)), kind


walks = st.lists(st.one_of(st.floats(0, 10).map(lambda s: ("compute", s)),
                           st.floats(0, 1).map(lambda p: ("wait", p))), max_size=20)


@given(walks)
def test_of_waits_with_nothing_computed_between_the_longest_counts(walk: list[tuple[str, float]]) -> None:
    lateness, late, expected, computed, longest = Lateness(lambda s: 0.1 * s), 0.0, 0.0, 0.0, None
    for what, value in [*walk, ("compute", 1.0)]:
        if what == "wait":
            late += float(lateness.wait(True, value))
            longest = max(longest or 0.0, value)
        else:
            if longest is not None and value > 0:
                expected, computed, longest = expected + longest**0.5 * 0.1 * computed, 0.0, None
            computed += value
            lateness.compute(value)
    assert late == pytest.approx(expected)


def test_cases_of_a_family_apart() -> None:
    lateness = Lateness(lambda s: 0.1 * s)
    lateness.compute(np.array([1.0, 2.0]))
    np.testing.assert_allclose(lateness.wait(np.array([True, False]), 1.0), [0.1, 0.0])
    lateness.compute(3.0)
    np.testing.assert_allclose(lateness.wait(True, np.array([1.0, 0.25])), [0.3, 0.25])
