"""Inference plans, and the size of images from which on cutting them pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, MeanSquaredError, ReLU
from hpcpar.report.tables.size_tables import sizes_answer
from hpcpar.search.sizes import largest_whole, pays_from, scaled

MACHINE = files.load("dgx-h100")


def fully_convolutional(shape: tuple[int, ...] = (3, 64, 64), classes: int = 0) -> Network:
    net = Graph("fully convolutional", shape)
    for i in range(4):
        net.add(Conv2d, f"conv{i}", out_channels=32, kernel=3, padding=1)
        net.add(ReLU, f"relu{i}")
    net.add(MeanSquaredError, "loss")
    return net.build()


def test_the_choice_of_inference_is_the_fastest_by_its_own_price() -> None:
    found = hpcpar.plan(fully_convolutional((3, 512, 512)), 4, 1, MACHINE, forward_only=True)
    assert not found.prediction.training and "per forward pass" in found.answer
    assert {step.phase for step in found.prediction.steps} <= {"forward", "loss"}
    for candidate in found.candidates:
        again = hpcpar.predict(plan=candidate.plan, machine=MACHINE, forward_only=True)
        assert again.predictions[0].iteration_s == pytest.approx(candidate.iteration_s, rel=1e-12)
        assert again.predictions[0].memory_bytes == candidate.memory_bytes
    fastest = min(c.iteration_s for c in found.candidates)
    assert found.prediction.iteration_s <= fastest * 1.12


def test_layer_by_layer_is_at_least_as_fast_as_named_strategies() -> None:
    net = fully_convolutional((3, 256, 256))
    layered, *named = (hpcpar.plan(net, 4, 2, MACHINE, strategy, forward_only=True).prediction
                       for strategy in ("layerwise", "spatial", "channel", "filter"))
    assert all(layered.iteration_s <= p.iteration_s * (1 + 1e-9) for p in named)


def test_inference_fits_where_training_does_not() -> None:
    device = replace(MACHINE.device, memory_bytes=5 * 10**8)
    small = replace(MACHINE, device=device)
    net = fully_convolutional((3, 1024, 1024))
    training, inference = (hpcpar.plan(net, 1, 1, small, "data", forward_only=forward_only)
                           for forward_only in (False, True))
    assert not training.best.fits and inference.best.fits


def sizes(widths: str, **options: Any) -> Any:
    return hpcpar.plan("tests.unit.search.test_sizes:fully_convolutional", 8, 1, MACHINE,
                       input="3x64x64", sizes=widths, **options).sizes


@pytest.mark.parametrize("forward_only", [True, False])
def test_cutting_pays_from_a_size_on(forward_only: bool) -> None:
    cases = sizes("2048,16,256", forward_only=forward_only)
    assert [case.shape for case in cases] == [(3, n, n) for n in (16, 256, 2048)]
    first = pays_from(cases)
    assert not cases[0].cuts and cases[-1].cuts and first is not None
    for case in cases:
        own = hpcpar.predict("tests.unit.search.test_sizes:fully_convolutional", 1, 1, MACHINE,
                             input=case.shape, forward_only=forward_only).predictions[0]
        assert case.whole.iteration_s == pytest.approx(own.iteration_s)
        assert case.gain.value == pytest.approx(own.iteration_s / case.best.iteration_s)
    assert f"pays from {'x'.join(map(str, first.shape))} on" in sizes_answer(cases)


def test_the_answer_names_sizes_that_fit_whole() -> None:
    cases = sizes("512,4096,32768", forward_only=True)
    whole = largest_whole(cases)
    assert [case.whole.fits for case in cases] == [True, True, False]
    assert whole is not None and "whole images fit up to 3x4096x4096" in sizes_answer(cases)
    assert "does not pay" in sizes_answer(sizes("8,16", forward_only=True))


def test_sizes_keep_proportions() -> None:
    assert scaled((3, 30, 40), 20) == (3, 15, 20)
    assert scaled((2, 1, 400), 100) == (2, 1, 100)
    assert scaled((1, 8, 16, 16), 32) == (1, 16, 32, 32)
    with pytest.raises(InputError, match="give multiples of 4"):
        scaled((3, 30, 40), 10)


def test_jitter_of_training_is_refused_for_inference() -> None:
    with pytest.raises(InputError, match="--robust simulates iterations of training"):
        hpcpar.plan("lenet5", 2, 8, robust=0.1, forward_only=True)


def test_a_strategy_beside_sizes_is_refused() -> None:
    with pytest.raises(InputError, match="--sizes finds the best plan of each size: drop it, or "
                                         "--strategy spatial"):
        hpcpar.plan("lenet5", 2, 8, strategy="spatial", sizes=[64, 128])
