"""The interval of the ratio of two plans' times."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hpcpar.cost.anchors import anchored_residuals
from hpcpar.cost.ratios import Priced, Ratio, Sized, speedup, times_as_long
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.price import plan_costs

ALEXNET = NetworkSpec("alexnet", (3, 227, 227), 1000)
RESNET = NetworkSpec("resnet50", (3, 224, 224), 1000)
V100, A100 = files.load("abci-v100"), files.load("dgx-a100")


def priced(machine: Machine, strategy: str, spec: NetworkSpec = ALEXNET, ranks: int = 16,
           batch: int = 512, **options: object) -> Priced:
    plan = make_plan(spec, strategy, ranks, batch, machine=machine, **options)
    return Priced(plan, plan_costs(spec.build(), plan, machine))


def width(ratio: Ratio) -> float:
    return math.log(ratio.high / ratio.low)


def test_two_runs_of_one_plan_differ_by_noise_alone() -> None:
    plan = priced(V100, "data")
    same = times_as_long(V100, plan, plan)
    assert same.value == 1 and same.about_equal and width(same) == pytest.approx(
        2 * 1.645 * 0.03, rel=1e-3)


def test_ignorance_is_not_equality() -> None:
    """A wide interval contains 1, but the simpler plan is not as good where it gives up much."""
    assert Ratio(0.95, 0.8, 1.1).as_good and not Ratio(0.8, 0.4, 1.6).as_good
    assert Ratio(0.8, 0.4, 1.6).about_equal and not Ratio(0.95, 0.91, 0.99).as_good


def test_the_order_of_two_plans_does_not_matter() -> None:
    data, owt = priced(V100, "data"), priced(V100, "owt")
    one, other = times_as_long(V100, data, owt), times_as_long(V100, owt, data)
    assert (1 / one.value, 1 / one.high, 1 / one.low) == pytest.approx(
        (other.value, other.low, other.high))


def test_layers_that_are_cut_alike_cancel() -> None:
    """Only ResNet-50's last layer differs under grid-fc, but all layers under domain."""
    data, last, every = (priced(A100, strategy, RESNET, 8, 64)
                         for strategy in ("data", "grid-fc:2x4", "domain:2x4"))
    assert width(times_as_long(A100, last, data)) < 0.11
    assert width(times_as_long(A100, every, data)) > 0.15


def test_a_common_factor_on_losses_does_not_make_the_smaller_loss_the_larger() -> None:
    """Both compute alike, so that the plan with less exposed communication stays ahead."""
    ring, tree = (Priced(plan, plan_costs(ALEXNET.build(), plan, V100)) for plan in (
        make_plan(ALEXNET, "data", 16, 512, machine=V100, collectives=name)
        for name in ("ring", "tree")))
    more = times_as_long(V100, tree, ring)
    assert more.low > 1.2 and more.low < 0.95 * more.value


def test_a_calibrated_machine_has_its_own_intervals() -> None:
    levels = tuple(replace(level, ratios=(0.99, 1.01)) for level in V100.levels)
    sure = replace(V100, compute={"measured": 1.0}, levels=levels, compute_ratios=(0.99, 1.01),
                   estimate_ratios=(0.99, 1.01))
    data, owt = priced(sure, "data"), priced(sure, "owt")
    assert width(times_as_long(sure, owt, data)) < 0.12 < width(times_as_long(V100, owt, data))


def test_a_part_that_a_calibration_did_not_measure_deviates_as_published_runs_do() -> None:
    """The machine has no interval for computing that its table does not cover, or for a level."""
    levels = tuple(replace(level, ratios=(0.99, 1.01)) for level in V100.levels)
    table = {"measured": 1.0}
    for machine in (replace(V100, compute=table, levels=levels, compute_ratios=(0.99, 1.01)),
                    replace(V100, compute=table, compute_ratios=(0.99, 1.01),
                            estimate_ratios=(0.99, 1.01))):
        data, owt = priced(machine, "data"), priced(machine, "owt")
        assert width(times_as_long(machine, owt, data)) > 0.12


def test_micro_batches_count_as_smaller_parts() -> None:
    whole, parts = priced(A100, "data", RESNET, 8, 512), priced(
        A100, "data", RESNET, 8, 512, microbatches=8)
    assert width(times_as_long(A100, parts, whole)) > 2 * 1.645 * 3 * 0.05


@pytest.mark.parametrize(("ranks", "batch"), [(2, 64), (16, 64), (16, 512), (1, 64)])
def test_sizes_deviate_as_published_runs_do(ranks: int, batch: int) -> None:
    """Weak scaling by the class of other numbers of ranks, strong scaling by doublings too."""
    one, many = Sized(1, 32, 1.0, (0.5, 2.0)), Sized(ranks, batch, 0.5, (0.5, 2.0))
    gain = speedup(many, one)
    assert gain.value == pytest.approx(batch / 0.5 / 32)
    known = anchored_residuals()
    runs = next(each for each in known.distances if each.name == "number of ranks")
    doublings = 1.645 * known.doubling_sd * abs(math.log2(batch / ranks / 32))
    sizes = math.log(runs.high) if ranks > 1 else 1.645 * 0.03
    assert math.log(gain.high / gain.value) == pytest.approx(math.hypot(doublings, sizes), rel=1e-3)


def test_the_two_own_intervals_are_used_where_they_are_narrower() -> None:
    one, many = Sized(1, 32, 1.0, (0.99, 1.01)), Sized(16, 512, 1.1, (0.99, 1.01))
    assert width(speedup(many, one)) == pytest.approx(2 * math.sqrt(2) * 0.01, rel=0.01)
    assert width(speedup(one, one)) == 0


def test_an_interval_that_begins_at_zero_is_no_error() -> None:
    """A calibrated part may deviate by its whole time."""
    one, many = Sized(1, 32, 1.0, (0.0, 3.0)), Sized(16, 512, 1.1, (0.0, 3.0))
    gain = speedup(many, one)
    assert 0 < gain.low < gain.value < gain.high
