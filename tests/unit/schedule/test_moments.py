"""Sums behind means and variances: who adds them, and when nobody need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    Flatten,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.prediction.price import price
from hpcpar.schedule.lower import lower
from hpcpar.schedule.moments import moments_layout, moments_pattern
from hpcpar.schedule.runnable import require
from hpcpar.schedule.steps import Comm, Phase, Role

MACHINE = files.load("local")


def network(norm: type[Layer] = GroupNorm, **options: Any) -> Network:
    net = Chain("small", (3, 8, 8)).add(Conv2d, "conv", out_channels=12, kernel=3, padding=1)
    net.add(norm, "norm", **options).add(ReLU, "relu").add(Flatten, "flatten")
    return net.add(Linear, "fc", out_features=4).add(SoftmaxCrossEntropy, "loss").build()


def plan(net: Network, **degrees: Any) -> Plan:
    config = Config(**degrees)
    configs = {layer.name: config if len(net.shapes[layer.name]) > 1 else
               Config(replicas=config.ranks) for layer in net.layers}
    return Plan(NetworkSpec(net.name, net.image_shape, 4), int(config.ranks), 12, "own", configs,
                precision="fp64", machine=MACHINE)


def moments(net: Network, given: Plan, training: bool = True) -> list[Comm]:
    schedule = lower(net, given, lambda step: ("ring", 1), training=training)
    return [s for s in schedule.comms if s.tensor.role is Role.MOMENTS]


@pytest.mark.parametrize(("norm", "options", "degrees"), [
    (GroupNorm, {"groups": 4}, {"n": 4}), (LayerNorm, {}, {"n": 3}),
    (GroupNorm, {"groups": 4}, {"n": 2, "c": 2}), (GroupNorm, {"groups": 12}, {"c": 6}),
    (LayerNorm, {"affine": False}, {"replicas": 2})])
def test_nothing_is_sent_where_each_rank_has_whole_groups(norm: type[Layer],
                                                          options: dict[str, Any],
                                                          degrees: dict[str, Any]) -> None:
    net = network(norm, **options)
    given = plan(net, **degrees)
    assert moments(net, given) == []
    assert price(net, given, MACHINE).iteration_s > 0


@pytest.mark.parametrize(("norm", "options", "degrees", "ranks", "groups"), [
    (GroupNorm, {"groups": 4}, {"h": 2}, 2, 4),
    (GroupNorm, {"groups": 4}, {"c": 2, "h": 2}, 2, 2),
    (GroupNorm, {"groups": 2}, {"c": 4}, 2, 1),
    (GroupNorm, {"groups": 3}, {"c": 2, "n": 3}, 2, 3),
    (GroupNorm, {"groups": 4}, {"c": 6, "w": 2}, 12, 4),
    (LayerNorm, {}, {"c": 2, "h": 2, "n": 2}, 4, 1)])
def test_ranks_that_share_groups_add_their_sums(norm: type[Layer], options: dict[str, Any],
                                                degrees: dict[str, Any], ranks: int,
                                                groups: int) -> None:
    net = network(norm, **options)
    given = plan(net, **degrees)
    steps = moments(net, given)
    assert [s.phase for s in steps] == [Phase.FORWARD, Phase.BACKWARD]
    for step in steps:
        assert step.group is not None and step.group.size == ranks and step.item_bytes == 8
        samples = 12 // degrees.get("n", 1)
        for rank in range(given.ranks):
            (n0, n1), (g0, g1), last = step.source_box(rank)
            assert (n1 - n0, g1 - g0, last) == (samples, groups, (0, 2))
            members = step.group.members(rank)
            assert {step.source_box(r) for r in members} == {step.source_box(rank)}
    # evaluation needs the statistics of its samples too
    assert [s.phase for s in moments(net, given, training=False)] == [Phase.FORWARD]


def test_a_normalization_before_which_nothing_is_trained_needs_no_sums_backward() -> None:
    net = Chain("first", (4, 8, 8)).add(GroupNorm, "norm", groups=2).add(Flatten, "flatten")
    net = net.add(Linear, "fc", out_features=4).add(SoftmaxCrossEntropy, "loss").build()
    assert [s.phase for s in moments(net, plan(net, h=2))] == [Phase.FORWARD]


def test_families_have_the_layouts_and_groups_of_their_cases() -> None:
    net = network(groups=4)
    norm = net.by_name["norm"]
    assert isinstance(norm, GroupNorm)
    cases = [Config(c=c, h=12 // c) for c in (1, 2, 3, 4, 6, 12)]
    given = plan(net, h=12)
    family = Plan(given.network, 12, 12, "own", given.configs | {"norm": Config.family(cases)})
    sizes = np.broadcast_to(np.prod([np.broadcast_to(d.size, 6) for d in moments_pattern(
        net, family, norm).mesh_axes], axis=0), 6)
    items = np.broadcast_to(moments_layout(net, family, norm, 12).largest_items, 6)
    for case, size, held in zip(cases, sizes, items, strict=True):
        alone = Plan(given.network, 12, 12, "own", given.configs | {"norm": case})
        group = moments_pattern(net, alone, norm).group
        assert (1 if group is None else group.size) == size
        assert moments_layout(net, alone, norm, 12).largest_items == held


def test_features_of_one_channel_are_normalized_together() -> None:
    """Groups smaller than a channel's pixels cannot lie on different ranks alone."""
    net = Chain("flat", (3, 2, 2)).add(Conv2d, "conv", out_channels=4, kernel=1)
    net.add(Flatten, "flatten").add(GroupNorm, "norm", groups=8)
    net = net.add(Linear, "fc", out_features=4).add(SoftmaxCrossEntropy, "loss").build()
    given = plan(net, n=1)
    configs = given.configs | {"flatten": Config(c=2), "norm": Config(c=2)}
    step, _ = moments(net, Plan(given.network, 2, 12, "own", configs))
    assert step.group is not None and step.group.size == 2
    assert step.source_box(0) == ((0, 12), (0, 8), (0, 2))


def test_groups_divide_the_channels() -> None:
    with pytest.raises(InputError, match=r"layer 'norm' .* 5 groups do not divide 12 channels"):
        network(groups=5)


def test_no_normalization_stands_first_after_the_switch() -> None:
    net = Chain("switched", (3, 8, 8)).add(Conv2d, "conv", out_channels=4, kernel=3)
    net.add(Flatten, "flatten").add(LayerNorm, "norm")
    net = net.add(Linear, "fc", out_features=4).add(SoftmaxCrossEntropy, "loss").build()
    sample, channel = Config(n=2), Config(c=2)
    configs = {layer.name: sample if layer.name in ("input", "conv", "flatten") else channel
               for layer in net.layers} | {"loss": Config(replicas=2)}
    given = Plan(NetworkSpec(net.name, net.image_shape, 4), 2, 8, "owt-b", configs, fc_passes=2)
    with pytest.raises(InputError, match=r"layer 'norm' .* first layer after the switch"):
        require(net, given)
