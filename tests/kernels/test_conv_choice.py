"""Which library computes which convolution on CPUs."""

from __future__ import annotations

import pytest

from hpcpar.calibrate import conv_probe
from hpcpar.errors import InputError
from hpcpar.kernels import backend, conv_choice
from hpcpar.kernels.conv_choice import (
    AUTO,
    LAST,
    NUMPY,
    PASSES,
    RULE,
    TORCH,
    chosen,
    in_words,
)


def test_the_faster_library_is_chosen() -> None:
    """NumPy computes the kinds that no plan has."""
    found = conv_probe.fastest({"window small forward": (1.2, 1.1), "1x1 small forward": (0.9, 0.8),
                                "window large forward": (1.2, 1.3)})
    assert found == dict.fromkeys(RULE, NUMPY) | {"window small forward": TORCH,
                                                  "window large forward": LAST}


def test_auto_takes_the_calibrated_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, or without PyTorch, it is NumPy; a named library ignores it."""
    mine = dict.fromkeys(RULE, NUMPY) | {"window small forward": TORCH}
    monkeypatch.setattr(conv_choice, "has_torch", lambda: True)
    assert chosen(AUTO, mine) == mine
    assert chosen(TORCH, mine) == RULE
    assert set(chosen(NUMPY, mine).values()) == set(chosen(AUTO, {}).values()) == {NUMPY}
    monkeypatch.setattr(conv_choice, "has_torch", lambda: False)
    assert set(chosen(AUTO, mine).values()) == {NUMPY}
    assert backend("cpu", kernels=AUTO, calibrated=mine).versions == {"convolutions": "NumPy"}


def test_a_damaged_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_choice, "has_torch", lambda: True)
    with pytest.raises(InputError, match=r"lacks 'window large forward' = numpy, torch or cha"):
        chosen(AUTO, {**RULE, "window large forward": "mkl"})


def test_words_name_what_pytorch_computes() -> None:
    choice = dict.fromkeys(RULE, NUMPY) | {f"window large {name}": TORCH for name in PASSES}
    assert in_words(choice | {"1x1 small forward": TORCH, "volume small forward": LAST}) == (
        "1x1 small (forward), window large (all), volume small (channels-last forward)")
