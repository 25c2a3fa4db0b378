"""How long a rank sleeps between its polls."""

from __future__ import annotations

import pytest

from hpcpar.comm import patience


@pytest.mark.parametrize("crowd", [False, True])
def test_in_a_crowd_one_sleeps_soon_and_longer(crowd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    monkeypatch.setattr(patience.time, "sleep", slept.append)
    waits = patience.Patience(crowd)
    polls = 1
    while waits.yields(polls):
        polls += 1
    for idle_s in (0.0, 0.008, 1.0):
        waits.sleep(idle_s)
    assert polls == (50 if crowd else 1000)
    assert slept == pytest.approx([2e-5, 0.008 / (16 if crowd else 50), 1e-3])
