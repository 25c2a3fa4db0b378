"""Stages of pipelines: where networks are cut, whether the largest is as small as can be, and how
micro-batches go through them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from hpcpar.cost.network.algorithm_choice import chooser, schedule_for
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.step_prices import StepPrice
from hpcpar.cost.timeline.timeline import Timeline, timeline
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Add, Conv2d, GlobalAvgPool, Linear, ReLU, SoftmaxCrossEntropy
from hpcpar.plan.config import Floats
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.plan.stages import cuts, stages, work
from hpcpar.prediction.price import price
from hpcpar.schedule.lower import in_order, outline, samples_of
from hpcpar.schedule.steps import Comm, Phase
from tests.mpi.networks import random_network
from tests.unit.brute import crossing, least_largest

MACHINE = files.load("local")


def residual() -> Network:
    """A layer, a block whose sum reads its input again, and two layers behind it."""
    net = Graph("residual", (3, 8, 8))
    x = net.add(Conv2d, "stem", out_channels=4, kernel=(3, 3), padding=(1, 1))
    net.add(Conv2d, "a", out_channels=4, kernel=(3, 3), padding=(1, 1))
    net.add(ReLU, "relu")
    y = net.add(Conv2d, "b", out_channels=4, kernel=(3, 3), padding=(1, 1))
    net.add(Add, "sum", after=(x, y))
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


@lru_cache
def built(name: str) -> Network:
    shapes = {"resnet50": (3, 64, 64), "lenet5": (1, 16, 16), "alexnet": (3, 67, 67)}
    return residual() if name == "residual" else builtin(name, shapes.get(name))


NAMES = ["residual", "lenet5", "alexnet", "vgg16", "resnet50", "inception_v3", "cosmoflow", "mlp"]


@pytest.mark.parametrize("name", NAMES)
def test_cuts_are_where_one_tensor_crosses(name: str) -> None:
    """All such places but those next to the input and to the loss, which belong to their
    neighbors.
    """
    network = built(name)
    count = len(network.layers)
    assert cuts(network) == [0,
                             *(at for at in range(2, count - 1) if len(crossing(network, at)) == 1),
                             count]


def test_blocks_are_not_cut() -> None:
    """Inside the block its input crosses as well: only before it and behind it one tensor does."""
    network = built("residual")
    names = [layer.name for layer in network.layers]
    assert [names[at] for at in cuts(network)[1:-1]] == ["a", "pool", "fc"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_stages_are_contiguous_and_hold_every_layer(name: str, count: int) -> None:
    network = built(name)
    found = stages(network, min(count, len(cuts(network)) - 1))
    assert set(found) == {layer.name for layer in network.layers}
    order = [found[layer.name] for layer in network.layers]
    assert order == sorted(order) and set(order) == set(range(max(order) + 1))
    begins = [at for at in range(1, len(order)) if order[at] != order[at - 1]]
    assert len(begins) == min(count, len(cuts(network)) - 1) - 1
    for at in begins:
        assert len(crossing(network, at)) == 1


@pytest.mark.parametrize("name", ["residual", "lenet5", "mlp", "alexnet"])
@pytest.mark.parametrize("count", range(1, 6))
def test_the_largest_stage_is_minimal(name: str, count: int) -> None:
    network = built(name)
    at, per_layer = cuts(network), work(network)
    count = min(count, len(at) - 1)
    found = stages(network, count)
    sums = [sum(w for layer, w in zip(network.layers, per_layer, strict=True)
                if found[layer.name] == s) for s in range(count)]
    assert max(sums) == pytest.approx(least_largest(per_layer, at, count), rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    network, _ = random_network(seed)
    at, per_layer = cuts(network), work(network)
    for count in range(1, min(5, len(at))):
        found = stages(network, count)
        sums = [sum(w for layer, w in zip(network.layers, per_layer, strict=True)
                    if found[layer.name] == s) for s in range(count)]
        assert max(sums) == pytest.approx(least_largest(per_layer, at, count), rel=1e-12)


def test_more_stages_than_cuts_are_refused() -> None:
    network = built("residual")
    assert max(stages(network, 4).values()) == 3
    with pytest.raises(InputError, match=r"at most 4 stages, not 5; .*pipeline:4xN"):
        stages(network, 5)
    spec = NetworkSpec("lenet5", (1, 16, 16), 10)
    most = len(cuts(spec.build())) - 1
    with pytest.raises(InputError, match=f"at most {most} stages"):
        make_plan(spec, f"pipeline:{most + 1}x1", most + 1, 64)


# -- the timeline ----------------------------------------------------------------------------------
@lru_cache
def uniform(layers: int) -> Network:
    net = Chain("uniform", (16,))
    for i in range(layers):
        net.add(Linear, f"fc{i}", out_features=16)
    return net.add(SoftmaxCrossEntropy, "loss").build()


def laid_out(p: int, micro: int, forward_s: list[float], backward_s: list[float], hop_s: float,
             update_s: float = 0.0, hidden: float = 1.0, order: str = "gpipe") -> Timeline[Floats]:
    """A pipeline of p stages whose times are given, whatever their layers take."""
    network = uniform(p)
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = make_plan(spec, f"pipeline:{p}x1", p, 4 * micro, network=network,
                     machine=MACHINE, microbatches=micro, order=order)
    one = outline(network, plan, chooser(NetworkModel(MACHINE), plan))
    seconds = {Phase.FORWARD: forward_s, Phase.BACKWARD: backward_s, Phase.UPDATE: [update_s] * p}
    prices, seen = [], set()
    steps = in_order(plan, [one] * micro).steps
    for s in steps:
        first = (s.stage, s.phase, s.part)
        if isinstance(s, Comm):
            assert s.receivers != (s.stage,) or p == 1
            told = s.phase is Phase.LOSS
            prices.append(StepPrice(0.0 if told else hop_s))
        elif first in seen:
            prices.append(StepPrice(0.0))
        else:
            seen.add(first)
            prices.append(StepPrice(seconds[s.phase][s.stage]))
    assert {s for s, *_ in seen} == set(range(p))
    return timeline(steps, prices, hidden)


@pytest.mark.parametrize("micro", [1, 2, 4, 7])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_equal_stages_take_paradls_time(p: int, micro: int) -> None:
    """(p + S - 1) (F + B), then the update; messages add their way through the pipeline and back.

    Every stage computes S (F + B) and the update; the rest is its bubble.
    """
    line = laid_out(p, micro, [2.0] * p, [3.0] * p, 0.0, 0.5)
    assert line.total_s == pytest.approx((p + micro - 1) * 5.0 + 0.5, rel=1e-12)
    for stage in line.stages:
        assert stage.bubble_s == pytest.approx((p - 1) * 5.0) and not sum(stage.exposed_s.values())
    line = laid_out(p, micro, [2.0] * p, [3.0] * p, 0.25, 0.5)
    assert line.total_s == pytest.approx((p + micro - 1) * 5.0 + 2 * (p - 1) * 0.25 + 0.5,
                                         rel=1e-12)


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("micro", [1, 2, 7])
def test_the_exposed_part_of_a_message_occupies_both_stages(micro: int, hidden: float) -> None:
    """Stages wait for the whole first message each way; each stage has to do half of the exposed
    part of every further message.
    """
    line = laid_out(2, micro, [2.0] * 2, [3.0] * 2, 0.25, hidden=hidden)
    assert line.total_s == pytest.approx((1 + micro) * 5.0 + 2 * 0.25 + (micro - 1) * (1 - hidden)
                                         * 0.25, rel=1e-12)


@pytest.mark.parametrize("micro", [1, 3, 8])
def test_the_slowest_stage_sets_the_pace(micro: int) -> None:
    """One way: once through all stages, and the other micro-batches one after the other through the
    slowest.
    """
    forward, backward = [1.0, 4.0, 2.0], [2.0, 3.0, 5.0]
    line = laid_out(3, micro, forward, backward, 0.0)
    bound = (3 + micro - 1) * (max(forward) + max(backward))
    assert sum(forward) + (micro - 1) * 4.0 + sum(backward) <= line.total_s <= bound
    if micro == 1:
        assert line.total_s == sum(forward) + sum(backward)


def test_spans_are_those_of_every_micro_batch() -> None:
    """Stage s begins when s stages and hops lie behind the first micro-batch."""
    line = laid_out(3, 4, [2.0] * 3, [3.0] * 3, 0.5)
    begins = [span.start_s for span in line.spans if span.end_s - span.start_s == 2.0]
    assert len(begins) == 12 and {0.0, 2.5, 5.0} < set(begins)
    assert max(span.end_s for span in line.spans) <= line.total_s


@pytest.mark.parametrize("hidden", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_every_stage_computes_communicates_or_waits(order: str, hidden: float) -> None:
    """Its computing, its exposed communication and its bubble are the iteration; of no message more
    is exposed than it takes.
    """
    forward, backward = [1.0, 4.0, 2.0], [2.0, 3.0, 5.0]
    line = laid_out(3, 5, forward, backward, 1.25, 0.5, hidden, order)
    for s, stage in enumerate(line.stages):
        busy = 5 * (forward[s] + backward[s]) + 0.5 + sum(stage.exposed_s.values())
        assert line.total_s == pytest.approx(busy + stage.bubble_s, rel=1e-12)
        assert stage.bubble_s >= 0.0
    assert max(line.waits_s) <= 1.25 * (1 + 1e-12)


def test_one_forward_one_backward_order() -> None:
    """In its order the last stage goes backward at once, and takes as long with equal stages."""
    line = laid_out(2, 3, [2.0] * 2, [3.0] * 2, 0.0, order="1f1b")
    assert line.total_s == laid_out(2, 3, [2.0] * 2, [3.0] * 2, 0.0).total_s == 20.0
    times = sorted((span.start_s, span.end_s) for span in line.spans if span.end_s > span.start_s)
    assert times == [(0.0, 2.0), (2.0, 4.0), (2.0, 4.0), (4.0, 7.0), (7.0, 9.0), (7.0, 10.0),
                     (9.0, 12.0), (10.0, 12.0), (12.0, 14.0), (12.0, 15.0), (14.0, 17.0),
                     (17.0, 20.0)]


def test_a_stages_messages_are_serialized() -> None:
    """Where a message takes longer than the stages compute, the links set the pace."""
    line = laid_out(2, 4, [1.0] * 2, [1.0] * 2, 3.0)
    assert line.total_s == pytest.approx(1.0 + 4 * 3.0 + 1.0 + 1.0 + 4 * 3.0 + 1.0)


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("strategy", ["pipeline:3x1", "data"])
def test_micro_batches_are_priced_by_their_sizes(strategy: str, order: str) -> None:
    """The steps of the schedule, one by one; a smaller micro-batch computes less."""
    spec = NetworkSpec("alexnet", (3, 67, 67), 20)
    network = spec.build()
    no_launch = replace(MACHINE, device=replace(MACHINE.device, launch_s=0.0))
    plan = make_plan(spec, strategy, 3, 30, network=network, machine=no_launch,
                     microbatches=4, order=order)
    p, schedule = price(network, plan, no_launch), schedule_for(network, plan)
    assert [s.label for s in p.steps] == [s.label for s in schedule.steps]
    assert [s.part for s in p.steps] == [s.part for s in schedule.steps]
    sizes = [samples_of(plan, part) for part in range(4)]
    assert sizes == [7, 8, 7, 8]
    relu = {s.part: s.seconds for s in p.steps if s.label == "relu1.forward"}
    wide = [-(-n // 3) if strategy == "data" else n for n in sizes]
    assert [relu[m] / relu[0] for m in range(4)] == pytest.approx([n / wide[0] for n in wide])


def test_priced_pipelines() -> None:
    """More micro-batches make the bubble smaller; the largest stage's work and every stage's
    messages are counted for each.
    """
    spec = NetworkSpec("alexnet", (3, 67, 67), 20)
    network = spec.build()
    no_launch = replace(MACHINE, device=replace(MACHINE.device, launch_s=0.0))
    found = {}
    for micro in (1, 2, 8):
        plan = make_plan(spec, "pipeline:4x1", 4, 64, network=network,
                         machine=no_launch, microbatches=micro)
        found[micro] = p = price(network, plan, no_launch)
        parts = {s.part for s in p.steps if s.phase == Phase.BACKWARD.value}
        assert parts == set(range(micro))
        waits_s = p.exposed_communication_s + p.bubble_s
        assert p.iteration_s == pytest.approx(p.compute_s + waits_s, rel=1e-12)
        assert 0.0 < p.exposed_communication_s <= p.communication_s and p.bubble_s > 0.0
        for row in p.phases.values():
            assert row["exposed_communication_s"] <= row["communication_s"] * (1 + 1e-12)
        hops = [s for s in p.steps if s.is_comm and s.phase == Phase.FORWARD.value]
        assert len(hops) == 3 * micro and all(s.messages == 1 for s in hops)
    assert found[8].iteration_s < found[2].iteration_s < found[1].iteration_s
