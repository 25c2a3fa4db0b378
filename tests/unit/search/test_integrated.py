"""Strategies with a grid of their own for fully connected layers, and Gholami's choice by layer."""

from __future__ import annotations

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.papers.gholami import HockneyLink, eq9_integrated, total_s
from hpcpar.papers.gholami_choice import choose
from hpcpar.plan.channel_cuts import integrated
from hpcpar.plan.limits import limit
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.strategies import configurations, parse
from hpcpar.plan.strategy import StrategyRequest
from hpcpar.search import auto

CORI = files.load("cori-knl")
ALEXNET = NetworkSpec("alexnet", (3, 224, 224), 1000)
NETWORK = ALEXNET.build()


def test_fully_connected_layers_may_have_another_grid() -> None:
    assert parse("domain:2x4+8x1") == ("domain", (2, 4, 8, 1))
    assert parse("domain:2x4+8x1/outer") == ("domain", (2, 4, 8, 1))
    configs = configurations(NETWORK, "domain:2x4+8x1", 8)
    assert str(configs["conv3"]) == "{n=4, h=2}" and str(configs["fc6"]) == "{c=8}"
    assert configurations(NETWORK, "domain:2x4+2x4", 8) == configurations(NETWORK, "domain:2x4", 8)
    # whole images: the grid for fully connected layers alone (Fig 7)
    alone = configurations(NETWORK, "grid-fc:2x4", 8)
    both = configurations(NETWORK, "domain:1x8+2x4", 8)
    assert {name for name in alone if str(alone[name]) != str(both[name])} <= {"flatten"}


@pytest.mark.parametrize(("strategy", "told"), [
    ("domain:2x4+8x2", "is for 16 ranks, not 8"), ("domain:2x2+8x1", "is for 4 ranks, not 8"),
    ("domain:2x4+8", "or two, as in 'domain:2x4\\+8x1'"), ("domain:2x4+", "or two"),
    ("domain:2x4+8x1+2x4", "or two"), ("domain:2x4+0x8", "or two"),
    ("grid:2x4+8x1", "needs a grid of whole numbers, as in 'grid:2x4'$"),
    ("integrated:2x2", "is for 4 ranks, not 8; use one of integrated:1x8"),
    ("integrated:2x4/outer", "takes no placement; write 'integrated:2x4'"),
    ("layerwise/outer", "takes no placement"), ("layerwise:2x4", "takes no grid"),
])
def test_impossible_grids_are_refused_in_one_line(strategy: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        auto.price_named(NETWORK, ALEXNET, strategy, 8, 64, CORI)
    assert "\n" not in str(refused.value)


def test_a_star_expands_to_every_second_grid() -> None:
    assert auto.expand("domain:2x2+*/outer", 4) == [
        "domain:2x2+1x4/outer", "domain:2x2+2x2/outer", "domain:2x2+4x1/outer"]
    assert auto.expand("domain:2x4+*", 4) == ["domain:2x4"]
    for wrong in ("grid:2x2+*", "data+*"):
        with pytest.raises(InputError, match="strategy"):
            auto.price_named(NETWORK, ALEXNET, auto.expand(wrong, 4)[0], 4, 64, CORI)


def test_a_star_stands_for_every_number_of_first_convolutions() -> None:
    """On every grid of the pattern that has all ranks."""
    build = NetworkSpec("lenet5", (1, 28, 28), 10).build
    assert auto.expand("ds:2x4+*", 8, build) == ["ds:2x4+1", "ds:2x4+2"]
    assert auto.expand("ds:*x2+*/outer", 4, build) == ["ds:2x2+1/outer", "ds:2x2+2/outer"]
    assert auto.expand("ds:*+*", 2, build) == ["ds:1x2+1", "ds:1x2+2", "ds:2x1+1", "ds:2x1+2"]
    assert auto.expand("ds:2x4+*", 4, build) == ["ds:2x4"]  # refused once
    assert auto.expand("domain:2x4+*", 4, build) == ["domain:2x4"]
    for wrong, told in (("ds:2x2+*", "has 0 convolutions"), ("ds:3x2+*", "is for 6 ranks, not 4")):
        flat = NetworkSpec("mlp", (1, 4, 4), 10)
        with pytest.raises(InputError, match=told):
            auto.price_named(flat.build(), flat, auto.expand(wrong, 4, flat.build)[0], 4, 64, CORI)


def test_a_star_stands_for_the_number_that_follows_from_the_ranks() -> None:
    assert auto.expand("df:*x4", 1024) == ["df:256x4"]
    assert auto.expand("ds:8x*/outer", 16) == ["ds:8x2/outer"]
    assert auto.expand("pipeline:2x*", 8) == ["pipeline:2x4"]
    for ranks in (2, 6):
        with pytest.raises(InputError, match=f"is for 4 ranks, not {ranks}; use one of df:1x"):
            auto.price_named(NETWORK, ALEXNET, auto.expand("df:*x4", ranks)[0], ranks, 64, CORI)


def test_all_convolutions_by_domain_are_the_strategy_domain() -> None:
    for gather in ("lazy", "eager"):
        for name in ("alexnet", "resnet50", "inception_v3"):
            net = builtin.network(name)
            convolutions = {x.name for x in net.matmul_layers if len(net.shapes[x.name]) > 1}
            request = StrategyRequest(net, 8, (2, 4), gather, "inner")
            assert integrated(request, convolutions) == configurations(
                net, "domain:2x4", 8, gather), (gather, name)


def test_no_convolution_by_domain_is_the_grid() -> None:
    request = StrategyRequest(NETWORK, 8, (2, 4), "lazy", "inner")
    assert integrated(request, ()) == configurations(NETWORK, "grid:2x4", 8)


def test_integrated_takes_gholamis_choice() -> None:
    """Section 3's case: all convolutions by domain, priced as Eq 9 but for halos of pooling."""
    link = HockneyLink(2e-6, 4 / 6e9)
    choice = choose(NETWORK, 512, 2048, link)
    found = auto.price_named(NETWORK, ALEXNET, "integrated", 512, 2048, CORI)
    assert found.strategy == "integrated" and found.plan.strategy == "integrated"
    assert found.plan.configs == configurations(NETWORK, f"domain:{choice.pr}x{choice.pc}", 512)
    paper = auto.price_named(NETWORK, ALEXNET, "integrated", 512, 2048, CORI, gather="eager",
                             overlap="none", accounting="paper")
    eq9_s = total_s(eq9_integrated(NETWORK, choice.pr, choice.pc, 2048, link))
    assert paper.prediction.communication_s == pytest.approx(eq9_s, rel=0.3)


def test_a_mixed_choice_cuts_every_layer_as_the_one_before() -> None:
    net = builtin.network("resnet50")
    some = {x.name for x in net.matmul_layers[:10]}
    configs = integrated(StrategyRequest(net, 8, (2, 4), "lazy", "inner"), some)
    for layer in net.layers:
        if layer.is_matmul:
            assert str(configs[layer.name]) == (
                "{n=4, h=2}" if layer.name in some else "{n=4, c=2}")
        elif layer.inputs and len(net.shapes[layer.name]) > 1:
            before = configs[layer.inputs[0]]
            assert configs[layer.name] == before or not before.h > 1


def test_the_strategy_has_the_limit_of_layer_wise_plans() -> None:
    assert limit(NETWORK, "integrated", 64) == limit(NETWORK, "layerwise", 64)
