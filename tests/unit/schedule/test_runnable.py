"""Plans that cannot be trained are refused in one line each; every other plan passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Flatten, Input, Linear, SoftmaxCrossEntropy
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.schedule.runnable import require
from tests.strategies import named

SPEC = NetworkSpec("lenet5", (1, 12, 12), 10)
LENET = SPEC.build()


def plan(strategy: str, ranks: int = 4, batch: int = 32, **options: Any) -> Plan:
    return make_plan(SPEC, strategy, ranks, batch, **options)


def fails(message: str, given: Plan, net: Any = LENET) -> None:
    with pytest.raises(InputError, match=message) as caught:
        require(net, given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strategy", [*named(4), "channel", "pipeline:2x2", "pipeline", "owt-b",
                                      "owt-c"])
def test_every_strategy_can_be_trained(strategy: str) -> None:
    for options in ({}, {"optimizer": "adam"}, {"batch_norm": "local"}, {"order": "1f1b"}):
        require(LENET, plan(strategy, **options))
    if strategy != "channel":
        for how in ("sharded", "server"):
            require(LENET, plan(strategy, synchronization=how))


def test_empty_microbatches() -> None:
    fails("batch of 3 samples cannot be cut into 4 micro-batches",
          plan("data", batch=3, microbatches=4))
    require(LENET, plan("data", batch=4, microbatches=4))


def test_reductions_are_allreduced() -> None:
    fails("layer 'conv2' is cut by k", plan("channel", synchronization="sharded"))


def test_fc_passes_can_be_trained() -> None:
    fails("use a multiple of 16", plan("owt-c", batch=24))
    fails("use a multiple of 4", plan("owt-b", batch=30))
    require(LENET, plan("owt-b", batch=28))
    fails("4 FC passes and 2 micro-batches", plan("owt-c", microbatches=2))
    fails("plan 4 FC passes, or use owt-c", plan("owt-b", fc_passes=2))
    fails("layer 'conv1' is on 2 of 4 ranks", _with(plan("owt-c"), conv1=Config(n=2)))
    fails(r"layer 'fc2' .* after the switch", _with(plan("owt-c"), fc2=Config(n=4)))
    fails("use the strategy owt", _with(plan("owt-c"), flatten=Config(c=4)))
    fails("use the strategy owt", _with(plan("owt-c"), fc1=Config(replicas=4)))


def test_fc_passes_of_branched_networks_are_checked() -> None:
    resnet = make_plan(NetworkSpec("resnet50", (3, 64, 64), 10), "owt-c", 4, 32)
    require(network("resnet50", (3, 64, 64), 10), resnet)
    inception = NetworkSpec("inception_v3", (3, 80, 80), 10)
    fails("use the strategy owt", make_plan(inception, "owt-c", 4, 32), inception.build())


def test_networks_without_features_have_no_fc_passes() -> None:
    unet = NetworkSpec("unet", (1, 16, 16), 2)
    fails("has layers on images alone", make_plan(unet, "owt-c", 4, 32), unet.build())
    require(unet.build(), make_plan(unet, "owt", 4, 32))


def _with(given: Plan, **configs: Config) -> Plan:
    return replace(given, configs={**given.configs, **configs})


@pytest.mark.parametrize(("batch", "image", "options", "fine"), [
    (1, (1, 1), {}, False), (2, (1, 1), {}, True), (1, (1, 2), {}, True), (1, (2, 2), {}, True),
    (2, (1, 1), {"microbatches": 2}, False), (3, (1, 1), {"microbatches": 2}, False),
    (4, (1, 1), {"microbatches": 2}, True), (4, (1, 1), {"batch_norm": "local"}, False),
    (6, (1, 1), {"batch_norm": "local"}, False), (8, (1, 1), {"batch_norm": "local"}, True),
    (4, (1, 2), {"batch_norm": "local"}, True),
])
def test_batch_normalization_of_one_value_is_refused(batch: int, image: tuple[int, int],
                                                     options: dict[str, Any], fine: bool) -> None:
    """As PyTorch does; with statistics of each rank's part, where one rank has one value."""
    net = Network("small", (Input("input", (), (3, *image)), BatchNorm("norm", ("input",)),
                            Flatten("flat", ("norm",)), Linear("fc", ("flat",), 2),
                            SoftmaxCrossEntropy("loss", ("fc",))))
    given = make_plan(NetworkSpec.of(net), "data", 4, batch, **options)
    if fine:
        require(net, given)
    else:
        fails(r"'norm' \(batch normalization\): Expected more than 1 value per channel when train",
              given, net)
        require(net, given, training=False)
