"""What a training cannot do though a plan can say it: one line each; everything else passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import network
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
def test_every_strategy_is_run(strategy: str) -> None:
    for options in ({}, {"optimizer": "adam"}, {"batch_norm": "local"}, {"order": "1f1b"}):
        require(LENET, plan(strategy, **options))
    if strategy != "channel":
        for how in ("sharded", "server"):
            require(LENET, plan(strategy, synchronisation=how))


def test_empty_microbatches() -> None:
    fails("batch of 3 samples cannot be cut into 4 micro-batches",
          plan("data", batch=3, microbatches=4))
    require(LENET, plan("data", batch=4, microbatches=4))


def test_reductions_are_allreduced() -> None:
    fails("layer 'conv2' is cut by k", plan("channel", synchronisation="sharded"))


def test_fc_passes() -> None:
    fails("use a multiple of 16", plan("owt-c", batch=24))
    fails("use a multiple of 4", plan("owt-b", batch=30))
    require(LENET, plan("owt-b", batch=28))
    fails("4 FC passes and 2 micro-batches", plan("owt-c", microbatches=2))
    fails("plan 4 FC passes, or use owt-c", plan("owt-b", fc_passes=2))
    fails("layer 'conv1' lives on 2 of 4 ranks", _with(plan("owt-c"), conv1=Config(n=2)))
    fails(r"layer 'fc2' .* after the switch", _with(plan("owt-c"), fc2=Config(n=4)))
    fails("use the strategy owt", _with(plan("owt-c"), flatten=Config(c=4)))
    fails("use the strategy owt", _with(plan("owt-c"), fc1=Config(replicas=4)))


def test_fc_passes_of_other_networks() -> None:
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
