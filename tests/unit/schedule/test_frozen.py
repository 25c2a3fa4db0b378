"""Frozen weights: no gradient, sum, update or state of theirs, in schedules, prices and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.plan import make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.runnable import require, require_own_training
from hpcpar.schedule.steps import Compute, Op, Phase
from hpcpar.train.checkpoint import tensor_shapes
from tests.unit.cost.allocation import allocated

BEGIN, ALL = ("conv1", "conv2"), ("conv1", "conv2", "fc1", "fc2", "fc3")


def lenet(*names: str, weights: str = "frozen") -> Network:
    net = network("lenet5")
    return replace(net, layers=tuple(replace(layer, weights=weights) if layer.name in names
                                     else layer for layer in net.layers))


def steps(net: Network, strategy: str = "data", **options: str) -> set[tuple[str, str]]:
    plan = make_plan(NetworkSpec.of(net), strategy, 2, 8, network=net,
                     machine=files.load("local"), **options)
    return {(step.layer, step.op.value if isinstance(step, Compute) else step.phase.value)
            for step in schedule_for(net, plan).steps}


@pytest.mark.parametrize("sync", ["allreduce", "sharded", "server"])
@pytest.mark.parametrize("strategy", ["data", "filter", "spatial", "owt-b"])
def test_frozen_layers_have_no_gradient_steps(strategy: str, sync: str) -> None:
    frozen, whole = steps(lenet("conv2"), strategy, synchronization=sync), steps(
        lenet(), strategy, synchronization=sync)
    assert frozen < whole
    assert {layer for layer, _ in whole - frozen} == {"conv2"}
    gone = {what for layer, what in whole - frozen}
    assert {Op.BACKWARD_WEIGHT.value, Op.UPDATE.value} <= gone
    assert ("conv2", Op.BACKWARD.value) in frozen


def test_layers_before_the_first_trained_one_have_no_backward_pass() -> None:
    found = steps(lenet(*BEGIN))
    back = {Op.BACKWARD.value, Op.BACKWARD_WEIGHT.value, Op.UPDATE.value, Phase.GRADIENT.value}
    assert not any(layer in (*BEGIN, "pool1", "relu1") and what in back for layer, what in found)
    assert not any(what in back - {Op.BACKWARD.value} for _, what in steps(lenet(*ALL)))


def test_prices_and_memory_shrink() -> None:
    machine, found = files.load("cori-knl"), []
    for net in (lenet(), lenet(*BEGIN), lenet(*ALL)):
        plan = make_plan(NetworkSpec.of(net), "data", 8, 256, network=net, machine=machine)
        found.append(price(net, plan, machine))
        again = NetworkSpec.of(net).build()
        assert again == net and [layer.weights for layer in again.layers] == [
            layer.weights for layer in net.layers]
    times, bytes_ = [p.iteration_s for p in found], [p.memory_bytes for p in found]
    assert times[0] > times[1] > times[2] and bytes_[0] > bytes_[1] > bytes_[2]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_memory_is_what_a_run_allocates(microbatches: int) -> None:
    """Further micro-batches have no second gradient of frozen weights."""
    net, machine = lenet("fc1"), files.load("local")
    plan = make_plan(NetworkSpec.of(net), "data", 2, 8, network=net, microbatches=microbatches,
                     machine=machine)
    real = [allocated(plan, schedule_for(net, plan), rank, net) for rank in range(2)]
    predicted = price(net, plan, machine)
    assert predicted.memory_bytes == max(sum(r.values()) - r["unused"] for r in real)
    weights, trained = net.parameters, net.parameters - net.by_name["fc1"].parameters(
        net.input_shape(net.by_name["fc1"]))
    assert predicted.memory.weights_bytes == 4 * (2 * weights + (microbatches - 1) * trained)


def test_checkpoints_hold_no_state_of_frozen_weights() -> None:
    net = lenet("fc1")
    assert "optimizer/weight_velocity" not in tensor_shapes(net, net.by_name["fc1"], ["_velocity"])
    assert "optimizer/weight_velocity" in tensor_shapes(net, net.by_name["fc2"], ["_velocity"])


def test_weights_that_the_source_trains_differently_are_planned_but_not_run() -> None:
    net = lenet("conv2", weights="otherwise")
    plan = make_plan(NetworkSpec.of(net), "data", 2, 8, network=net)
    require(net, plan)
    with pytest.raises(InputError, match=r"layer 'conv2' can be planned, but not run"):
        require_own_training(net)
