"""Limits of scaling: what a plan says of layers that are cut into more parts than they have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.network.builtin import network
from hpcpar.plan.layout import computed, needed
from hpcpar.plan.limits import CUT_ITEMS, PassedLimit, limits_in_words, passed_limits
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from tests.strategies import named

LENET = network("lenet5")
SPEC = NetworkSpec("lenet5", LENET.image_shape, LENET.classes)


def plan_of(strategy: str, ranks: int, batch: int) -> Plan:
    return make_plan(SPEC, strategy, ranks, batch)


def passed(strategy: str, ranks: int, batch: int) -> dict[tuple[str, str], PassedLimit]:
    return {(x.layer, x.axis): x for x in passed_limits(LENET, plan_of(strategy, ranks, batch))}


def test_a_plan_within_its_limits_reports_none() -> None:
    for strategy in ("data", "filter", "channel", "spatial", "df:2x2", "pipeline:2x2"):
        assert not passed(strategy, 4, 64)


@pytest.mark.parametrize(("strategy", "ranks", "layer", "axis", "extent"), [
    ("data", 64, "conv1", "n", 16), ("filter", 16, "conv1", "c", 6),
    ("channel", 16, "conv2", "k", 6), ("filter", 1 << 20, "fc3", "c", 10),
    ("spatial", 64, "pool2", "h", 7),
])
def test_each_kind_of_limit_is_reported(strategy: str, ranks: int, layer: str, axis: str,
                                        extent: int) -> None:
    found = passed(strategy, ranks, 16)[layer, axis]
    assert found.extent == extent < found.parts
    if found.parts == ranks:
        assert found.idle_ranks == ranks - extent


@settings(max_examples=60)
@given(st.integers(1, 48), st.integers(1, 40), st.data())
def test_idle_ranks_are_those_with_nothing_to_compute(ranks: int, batch: int,
                                                      data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from([s for s in named(ranks) if "pipeline" not in s]))
    plan = plan_of(strategy, ranks, batch)
    idle_ranks = {x.layer: x.idle_ranks for x in passed_limits(LENET, plan)}
    for layer in LENET.layers[1:]:
        config = plan.configs[layer.name]
        layouts = [computed(LENET, layer, config, batch)]
        layouts += [needed(LENET, layer, config, batch)] * config.reduces
        empty = [rank for rank in range(ranks) if min(x.items(rank) for x in layouts) == 0]
        assert idle_ranks.get(layer.name, 0) == len(empty), layer.name


def test_the_sentence_names_the_worst_limits_first() -> None:
    told = limits_in_words(passed_limits(LENET, plan_of("filter", 128, 16)))
    assert told.startswith("6 filters in 128 parts leave 122 of 128 ranks idle in conv1, ")
    assert all(thing in CUT_ITEMS.values() for thing in ("filters", "channels"))
