"""Tied weights: their gradient is summed once, by plans that cut their layers alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.config import Config
from hpcpar.plan.layout import parameters
from hpcpar.plan.plan import Plan, make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.runnable import require
from hpcpar.schedule.steps import Compute, Op, Phase
from hpcpar.search.auto import best
from tests.unit.cost.allocation import allocated

LOCAL = files.load("local")


def network(tied: bool = True, **changed: object) -> Network:
    """Three convolutions; with the same weights where `tied`."""
    same = {"out_channels": 4, "kernel": 3, "padding": 1}
    options = same | ({"weights_of": "first"} if tied else {}) | changed
    net = Graph("tied", (4, 8, 8))
    for name in ("first", "second", "third"):
        net.add(Conv2d, name, **(same if name == "first" else options))
        net.add(ReLU, f"{name}_relu")
    for layer, name in (GlobalAvgPool, "pool"), (Linear, "fc"), (SoftmaxCrossEntropy, "loss"):
        net.add(layer, name, **({"out_features": 5} if name == "fc" else {}))
    return net.build()


def planned(net: Network, strategy: str = "data", **options: object) -> Plan:
    return make_plan(NetworkSpec.of(net), strategy, 2, 8, network=net, machine=LOCAL, **options)


def test_tied_weights_count_once() -> None:
    net, whole = network(), network(tied=False)
    assert whole.parameters - net.parameters == 2 * (4 * 4 * 9 + 4)
    assert [layer.name for layer in net.weighted] == ["first", "fc"] == [
        layer.name for layer in net.stateful]
    assert NetworkSpec.of(net).build() == net and net.tied == {"first": ("second", "third")}
    steps = schedule_for(net, planned(net)).steps
    sums = [step.layer for step in steps if step.phase is Phase.GRADIENT]
    updates = [step.layer for step in steps if step.phase is Phase.UPDATE]
    back = [s.layer for s in steps if isinstance(s, Compute) and s.op is Op.BACKWARD_WEIGHT]
    assert sums == updates == ["fc", "first"] and back == ["fc", "third", "second", "first"]


@pytest.mark.parametrize("strategy", ["data", "filter", "channel", "spatial"])
def test_tied_weights_do_not_change_compute_time(strategy: str) -> None:
    net, whole = network(), network(tied=False)
    config = planned(net, strategy).configs["third"]
    assert parameters(net, net.by_name["third"], config).largest == parameters(
        whole, whole.by_name["third"], config).largest
    forward = [price(each, planned(each, strategy), LOCAL).phases["forward"]
               for each in (net, whole)]
    assert forward[0] == forward[1]


@pytest.mark.parametrize("options", [{}, {"microbatches": 2}, {"synchronization": "sharded"}])
@pytest.mark.parametrize("strategy", ["data", "filter", "spatial"])
def test_memory_is_what_a_run_allocates(strategy: str, options: dict[str, object]) -> None:
    net = network()
    plan = planned(net, strategy, **options)
    real = [allocated(plan, schedule_for(net, plan), rank, net) for rank in range(2)]
    largest = max(sum(r.values()) - r["unused"] for r in real)
    # messages of uneven shards
    rel = 0.02 if options.get("synchronization") == "sharded" else 0.0
    assert price(net, plan, LOCAL).memory_bytes == pytest.approx(largest, rel=rel)


def test_plans_that_cut_tied_layers_differently_are_refused() -> None:
    net = network()
    plan = planned(net)
    require(net, plan)
    other = replace(plan, configs=plan.configs | {"third": Config(c=2)})
    with pytest.raises(InputError, match="layers 'first' and 'third' have the same weights, but"):
        require(net, other)
    chosen = best(net, NetworkSpec.of(net), 2, 8, LOCAL)[0]
    require(net, chosen.plan)


def test_only_layers_of_one_kind_can_be_tied() -> None:
    with pytest.raises(InputError, match="only layers of one kind, with weights of one shape"):
        network(kernel=1, padding=0)
    with pytest.raises(InputError, match="uses the weights of 'third', which is not defined"):
        network(weights_of="third")
    net = Graph("two", (4,))
    net.add(Linear, "a", out_features=4)
    net.add(Linear, "b", weights_of="a", out_features=3)
    with pytest.raises(InputError, match="layer 'b' cannot use the weights of 'a'"):
        net.add(SoftmaxCrossEntropy, "loss")
        net.build()


def test_tied_normalizations_have_one_pair_of_statistics() -> None:
    net = Graph("two", (4, 8, 8))
    net.add(BatchNorm, "a")
    net.add(BatchNorm, "b", weights_of="a")
    net.add(SoftmaxCrossEntropy, "loss")
    found = net.build()
    assert [layer.name for layer in found.stateful] == ["a"]
    assert [layer.buffers((4, 8, 8)) for layer in found.layers] == [0, 8, 0, 0]
