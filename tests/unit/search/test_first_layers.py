"""Images cut in the first layers only, with the switch given or chosen by price."""

from __future__ import annotations

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.plan.strategies import configurations, parse
from hpcpar.plan.strategy import grid_sizes
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Comm, Kind, Phase
from hpcpar.search import auto
from hpcpar.search.first_layers import switches

CORI = files.load("cori-knl")
ALEXNET = NetworkSpec("alexnet", (3, 227, 227), 1000)
NETWORK = ALEXNET.build()


def ring(step: Comm) -> tuple[str, int]:
    return "ring", 1


def test_images_are_whole_behind_the_switch() -> None:
    assert parse("ds:2x4+2/outer") == ("ds", (2, 4, 2))
    configs = configurations(NETWORK, "ds:2x4+2", 8)
    assert {str(configs[name]) for name in ("input", "conv1", "pool2")} == {"{n=2, h=4}"}
    assert {str(configs[name]) for name in ("conv3", "flatten", "fc8", "loss")} == {"{n=2, x4}"}


def test_only_layers_that_are_cut_need_enough_rows() -> None:
    """Images of 6 x 6 (pool5) have too few rows, images of 27 x 27 (pool1) have enough."""
    assert str(configurations(NETWORK, "ds:1x32", 32)["conv1"]) == "{h=32}"
    assert str(configurations(NETWORK, "ds:1x32+1", 32)["conv1"]) == "{h=16, w=2}"


def test_the_switch_gathers_once_and_sends_nothing_back() -> None:
    plan = make_plan(ALEXNET, "ds:2x4+2", 8, 16, network=NETWORK)
    comms = lower(NETWORK, plan, ring).comms
    (gather,) = [c for c in comms if c.phase is Phase.FORWARD and c.kind is not Kind.HALO]
    assert (gather.layer, gather.kind) == ("conv3", Kind.ALLGATHER)
    assert {c.kind for c in comms if c.phase is Phase.BACKWARD} == {Kind.HALO}
    groups = {c.layer: c.group.size for c in comms if c.phase is Phase.GRADIENT and c.group}
    assert groups == {name: 8 if name in ("conv1", "conv2") else 2 for name in groups}


def test_switches_are_where_images_shrink() -> None:
    assert switches(NETWORK) == [1, 2, 5]
    assert switches(builtin.network("vgg16")) == [2, 4, 7, 10, 13]


@pytest.mark.parametrize("batch", [4, 64])
def test_the_fastest_grid_and_switch_are_chosen(batch: int) -> None:
    chosen = auto.price_named(NETWORK, ALEXNET, "ds-first", 8, batch, CORI)
    others = [auto.price_named(NETWORK, ALEXNET, f"ds:{a}x{b}+{count}", 8, batch, CORI)
              for a, b in grid_sizes(8) if b > 1 and a <= batch for count in switches(NETWORK)]
    best = min(others, key=lambda c: c.iteration_s)
    assert chosen.strategy == best.strategy == chosen.plan.strategy
    assert chosen.iteration_s == pytest.approx(best.iteration_s, rel=1e-12)
    grid = chosen.strategy.partition(":")[2].partition("+")[0]
    same = auto.price_named(NETWORK, ALEXNET, f"ds-first:{grid}", 8, batch, CORI)
    assert same.strategy == chosen.strategy


@pytest.mark.parametrize(("strategy", "network", "told"), [
    ("ds:2x4+6", "alexnet", "has 5 convolutions"), ("ds:2x2+2", "alexnet", "is for 4 ranks, not 8"),
    ("ds:2x4+0", "alexnet", "or a grid and a number, as in 'ds:2x4\\+8'"),
    ("ds:2x4+2x4", "alexnet", "or a grid and a number"), ("ds:2x4+1", "mlp", "has 0 convolutions"),
    ("ds-first", "mlp", "has no convolution; use --strategy data"),
    ("ds-first:2x2", "alexnet", "is for 4 ranks, not 8"),
])
def test_impossible_switches_are_refused_in_one_line(strategy: str, network: str,
                                                     told: str) -> None:
    net = builtin.network(network)
    spec = NetworkSpec(network, net.image_shape, net.classes)
    with pytest.raises(InputError, match=told) as refused:
        auto.price_named(net, spec, strategy, 8, 64, CORI)
    assert "\n" not in str(refused.value)
