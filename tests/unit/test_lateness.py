"""How late ranks are that take turns on cores, by what they computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.lateness import Lateness

walks = st.lists(st.one_of(st.floats(0, 10), st.just("wait")), max_size=20)


@given(walks)
def test_waits_with_nothing_computed_between_are_late_once(walk: list[Any]) -> None:
    lateness, late, expected, computed, waited = Lateness(lambda s: 0.1 + 0.1 * s), 0.0, 0.0, 0.0, False
    for what in walk:
        if what == "wait":
            late += float(lateness.wait(True))
            expected += 0.0 if waited else 0.1 + 0.1 * computed
            waited = True
        else:
            if what > 0 and waited:
                computed, waited = 0.0, False
            computed += what
            lateness.compute(what)
    assert late == pytest.approx(expected)


def test_cases_of_a_family_apart() -> None:
    lateness = Lateness(lambda s: 0.1 * s)
    lateness.compute(np.array([1.0, 2.0]))
    np.testing.assert_allclose(lateness.wait(np.array([True, False])), [0.1, 0.0])
    lateness.compute(3.0)
    np.testing.assert_allclose(lateness.wait(True), [0.3, 0.5])
