"""A network whose caller needs the gradient of its images has more backward steps, with prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hpcpar
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Flatten, Linear, SoftmaxCrossEntropy
from hpcpar.plan import plan as plans
from hpcpar.schedule.steps import Comm, Phase


def networks() -> tuple[Network, Network]:
    """A network, and the same with the gradient of its images."""
    chain = Chain("images", (3, 16, 16))
    chain.add(Conv2d, "first", out_channels=8, kernel=(3, 3), padding=(1, 1))
    chain.add(Conv2d, "second", out_channels=8, kernel=(3, 3), padding=(1, 1))
    chain.add(Flatten, "flat").add(Linear, "fc", out_features=5)
    plain = chain.add(SoftmaxCrossEntropy, "loss").build()
    images, *layers = plain.layers
    return plain, replace(plain, layers=(replace(images, learns=True), *layers))


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_the_first_layer_computes_and_returns_the_gradient_of_its_input(strategy: str) -> None:
    found = []
    for network in networks():
        plan = hpcpar.plan(network, 4, 8, "dgx-a100", strategy).plan
        assert plans.from_json(plans.to_json(plan), "the plan") == plan
        steps = schedule_for(plan.network.build(), plan).steps
        found.append([(step.layer, "move" if isinstance(step, Comm) else step.op.value)
                      for step in steps if step.phase is Phase.BACKWARD])
    more = [step for step in found[1] if step not in found[0]]
    moves = [("first", "move")] if strategy == "spatial" else []
    assert more == [("first", "backward"), *moves, ("input", "backward_weight")]


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_the_gradient_of_the_images_has_a_price(strategy: str) -> None:
    plain, more = (hpcpar.plan(network, 4, 64, "dgx-a100", strategy).prediction
                   for network in networks())
    assert more.iteration_s > plain.iteration_s
