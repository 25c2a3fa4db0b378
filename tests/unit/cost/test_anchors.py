"""Factors that fit measured iterations, and the case that takes them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hpcpar.cost import anchors
from hpcpar.cost.anchors import (
    MEASUREMENT_ERROR,
    MORE_RANKS,
    anchored_residuals,
    in_case,
    nearest,
    posterior,
    sd_of,
    with_factors,
)
from hpcpar.machine import files
from hpcpar.machine.anchored import Anchor, Anchoring, TimeFactors
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import Synchronization, make_plan
from hpcpar.prediction.price import price
from tests.unit.played import lenet

ONE = Anchor("1 rank, batch 64", 1, 64, "data", "fp32", "", 0.3, 0.2, 0.29, TimeFactors(1.5, 1.0))
EIGHT = replace(ONE, name="8 ranks", ranks=8, batch=512, exact=TimeFactors(1.4, 3.0))


def machine(*some: Anchor) -> Machine:
    """A machine with anchors, fitted by 1.44 and 4."""
    return replace(files.load("dgx-a100"),
                   anchored=Anchoring(fitted=TimeFactors(1.44, 4.0), anchors=some))


def test_a_single_rank_is_a_conjugate_update_of_one_factor() -> None:
    sd = 0.1
    found = posterior([lambda loss: 2.0], [3.0], (sd, 1.0))
    weight = sd**2 / (sd**2 + MEASUREMENT_ERROR**2)
    assert found.computing == pytest.approx(1.5**weight, rel=1e-3) and found.loss == 1.0


def test_two_numbers_of_ranks_separate_computing_from_loss(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit finds the factors behind exact measurements, hidden messages or not."""
    monkeypatch.setattr(anchors, "MEASUREMENT_ERROR", 1e-4)

    def hidden(loss: float) -> float:
        return 1.0 + max(0.02 * loss, 0.3 * loss - 0.7)

    for computing, loss in ((1.2, 3.0), (0.8, 0.5), (1.0, 6.0)):
        time = computing * hidden(loss / computing)
        found = posterior([lambda loss: 1.0, hidden], [computing, time], (0.3, 1.0))
        assert found.computing == pytest.approx(computing, rel=0.01)
        assert found.computing * hidden(found.loss / found.computing) == pytest.approx(
            time, rel=0.01)


def test_a_loss_that_measurements_do_not_show_stays_near_one() -> None:
    found = posterior([lambda loss: 1.0, lambda loss: 1.0 + 0.001 * loss], [1.0, 1.0], (0.2, 1.0))
    assert found.loss == pytest.approx(1.0, rel=0.01)


def test_an_anchor_s_case_takes_its_own_factors_and_others_a_share() -> None:
    anchored, known = machine(ONE, EIGHT), {d.name: d for d in anchored_residuals().distances}
    assert in_case(anchored, 1, 64, "fp32").factors == ONE.exact
    assert in_case(anchored, 8, 512, "fp32").factors == EIGHT.exact
    for (ranks, batch, precision), name in {
            (32, 2048, "fp32"): MORE_RANKS, (1, 128, "fp32"): "batch", (8, 512, "amp"):
            "number format", (4, 1024, "fp32"): "number of ranks and batch"}.items():
        share = known[name].share
        assert in_case(anchored, ranks, batch, precision).factors == TimeFactors(
            1.44**share, 4.0**share)
    assert nearest(Anchoring(anchors=(EIGHT, ONE)), 1, 128, "fp32")[0] is ONE
    far = Anchoring(anchors=(replace(ONE, machine="dgx1-v100"),))
    assert nearest(far, 1, 64, "fp32")[1] is known["device"]
    assert nearest(Anchoring(anchors=(ONE,)), 4, 256, "fp32")[1] is known["number of ranks"]


def test_factors_replace_each_other() -> None:
    anchored = machine(ONE, EIGHT)
    case = in_case(anchored, 8, 512, "fp32")
    assert case.levels[0].alpha_s == pytest.approx(3 * anchored.levels[0].alpha_s)
    assert in_case(case, 8, 512, "fp32") is case
    again = in_case(in_case(case, 1, 64, "fp32"), 8, 512, "fp32")
    assert again.levels[-1].beta_s_per_byte == pytest.approx(case.levels[-1].beta_s_per_byte)
    assert files.from_dict(files.to_dict(case)) == case
    plain = files.load("dgx-a100")
    assert in_case(plain, 8, 512, "fp32") is plain and "anchored" not in files.to_dict(plain)


@pytest.mark.parametrize(("name", "strategy"), [
    ("dgx-a100", "data"), ("dgx-a100", "filter"), ("local", "spatial"),
    ("p100x4x4", "pipeline:4x1")])
def test_equal_factors_scale_an_iteration_and_leave_bytes(name: str, strategy: str) -> None:
    on, spec = files.load(name), lenet("data", 1).network
    plan = make_plan(spec, strategy, 4, 16)
    before = price(spec.build(), plan, on)
    after = price(spec.build(), plan, with_factors(on, TimeFactors(3.0, 3.0)))
    assert after.iteration_s == pytest.approx(3 * before.iteration_s)
    assert after.memory == before.memory
    assert after.communication_bytes == before.communication_bytes
    served = make_plan(spec, "data", 4, 16, synchronization=Synchronization.SERVER_HOST)
    if on.host is not None:
        times = [price(spec.build(), served, with_factors(on, TimeFactors(by, by))).iteration_s
                 for by in (1.0, 3.0)]
        assert times[1] == pytest.approx(3 * times[0])
    computing = price(spec.build(), plan, with_factors(on, TimeFactors(3.0, 1.0)))
    assert computing.communication_s == pytest.approx(before.communication_s)
    assert computing.compute_s == pytest.approx(3 * before.compute_s, rel=0.05)


def test_the_prior_is_the_width_of_the_model_s_interval() -> None:
    assert sd_of((1 / 1.3, 1.3)) == pytest.approx(math.log(1.3) / 1.645)
    assert sd_of((0.0, 1.3)) > sd_of((0.5, 1.3)) and sd_of((1.0, 1.0)) > 0
