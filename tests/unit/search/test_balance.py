"""Stages of pipelines balanced by what their layers take on a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcpar.cost.price_family import Costs, price_family
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.stages import cuts
from hpcpar.prediction.price import price
from hpcpar.search import auto
from hpcpar.search.balance import balanced
from tests.unit.brute import least_largest

ALEXNET = NetworkSpec("alexnet", (3, 227, 227), 1000)
RESNET = NetworkSpec("resnet50", (3, 64, 64), 100)


def planned(spec: NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine,
            **options: Any) -> tuple[Network, Plan, Costs]:
    network = spec.build()
    plan = make_plan(spec, strategy, ranks, batch, network=network, machine=machine,
                     **options)
    return network, plan, price_family(network, plan, machine)


def stage_sums(network: Network, plan: Plan, seconds: dict[str, Any]) -> list[float]:
    firsts = sorted({config.first for config in plan.configs.values()})
    return [sum(float(seconds[layer.name]) for layer in network.layers
                if plan.configs[layer.name].first == first) for first in firsts]


@pytest.mark.parametrize(
    ("spec", "strategy", "ranks", "preset"),
    [(ALEXNET, "pipeline:4x1", 4, "p100x4x4"), (ALEXNET, "pipeline:3x2", 6, "h100x8"),
     (RESNET, "pipeline:3x1", 3, "abci-v100"), (RESNET, "pipeline:2x4", 8, "cori-knl")],
)
@pytest.mark.parametrize("microbatches", [2, 8])
def test_no_cut_has_a_faster_slowest_stage(spec: NetworkSpec, strategy: str, ranks: int,
                                           preset: str, microbatches: int) -> None:
    """Against every choice of cuts, by the seconds of the new plan itself; layers are on as many
    ranks as before, cut alike.
    """
    machine = files.load(preset)
    network, plan, costs = planned(spec, strategy, ranks, 64, machine, microbatches=microbatches)
    found = balanced(network, plan, costs)
    seconds = price_family(network, found, machine).seconds_of_layers()
    at, per_layer = cuts(network), [float(seconds[layer.name]) for layer in network.layers]
    sums = stage_sums(network, found, seconds)
    assert max(sums) == pytest.approx(least_largest(per_layer, at, len(sums)), rel=1e-12)
    assert seconds == pytest.approx(costs.seconds_of_layers(), rel=1e-12)
    assert {replace(c, first=0) for c in found.configs.values()} == {
        replace(c, first=0) for c in plan.configs.values()
    }
    assert balanced(network, found, price_family(network, found, machine)) is found


def test_a_layers_seconds_are_the_sum_of_its_steps() -> None:
    machine = files.load("h100x8")
    network, plan, costs = planned(RESNET, "pipeline:2x2", 4, 32, machine, microbatches=4,
                                   order="1f1b")
    told, sums = price(network, plan,
                       machine), dict.fromkeys((layer.name for layer in network.layers), 0.0)
    for step in told.steps:
        if not step.is_comm:
            sums[step.layer] += step.seconds
    assert costs.seconds_of_layers() == pytest.approx(sums, rel=1e-12)
    assert sums.pop("input") == 0.0
    assert {row.name: row.compute_s for row in told.layers} == pytest.approx(sums, rel=1e-12)


def test_a_plan_without_stages_is_unchanged() -> None:
    network, plan, costs = planned(RESNET, "data", 4, 32, files.load("h100x8"))
    assert balanced(network, plan, costs) is plan


def one_of_all(network: Network, spec: NetworkSpec, strategy: str, *rest: Any) -> auto.Candidate:
    return auto.priced(auto.task(network, spec, *rest), ["data", strategy])[1]


@pytest.mark.parametrize("search", [auto.price_named, one_of_all])
def test_named_pipelines_are_balanced(search: Callable[..., auto.Candidate]) -> None:
    """AlexNet's fully connected layers read their weights for every micro-batch: by flops alone
    they share a stage with convolutions.
    """
    machine = files.load("p100x4x4")
    network, _, costs = planned(ALEXNET, "pipeline:4x1", 4, 128, machine)
    found = search(network, ALEXNET, "pipeline:4x1", 4, 128, machine)
    assert found.iteration_s < costs.iteration_s / 1.5
    assert price(network, found.plan, machine).iteration_s == pytest.approx(
        found.iteration_s, rel=1e-12
    )


@pytest.mark.parametrize(("preset", "ranks"), [("k80x16", 12), ("h100x8", 4), ("local", 2)])
def test_balancing_never_makes_a_named_pipeline_slower(preset: str, ranks: int) -> None:
    machine = files.load(preset)
    for stages in (s for s in range(2, ranks + 1) if ranks % s == 0):
        strategy = f"pipeline:{stages}x{ranks // stages}"
        network, _, costs = planned(RESNET, strategy, ranks, 48, machine)
        assert auto.price_named(network, RESNET, strategy, ranks, 48,
                                machine).iteration_s <= costs.iteration_s
