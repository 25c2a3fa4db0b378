"""Priced steps against the busiest rank, work, and whole prices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hpcpar.cost.compute.step_time import roofline_s, timed
from hpcpar.cost.compute.work import Work, Workload
from hpcpar.cost.network.algorithm_choice import (
    schedule_for,
)
from hpcpar.machine import files
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Conv2d,
    Flatten,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    ReLU,
)
from hpcpar.network.receptive_field import Window
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.prediction.prediction import Prediction, StepCost
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase
from hpcpar.search import auto
from hpcpar.search.choice import times_as_fast
from tests.strategies import named, one_pass
from tests.unit.brute import busiest, random_configs

LOCAL = files.load("local")
CORI = files.load("cori-knl")
SMALL = NetworkSpec("alexnet", (3, 67, 67), 20)


def plan_of(strategy: str, ranks: int, batch: int, spec: NetworkSpec = SMALL,
            machine: files.Machine = LOCAL, **options: Any) -> Plan:
    return make_plan(spec, strategy, ranks, batch, machine=machine, **options)


def priced_steps(strategy: str, ranks: int, batch: int,
                 **options: Any) -> list[tuple[Comm, StepCost]]:
    """The communication steps of a plan for the small AlexNet, with their prices."""
    network, plan = SMALL.build(), plan_of(strategy, ranks, batch, **options)
    steps = schedule_for(network, plan).steps
    found = zip(steps, price(network, plan, LOCAL).steps, strict=True)
    return [(step, cost) for step, cost in found if isinstance(step, Comm)]


def parts_of(step: Comm, ranks: int) -> list[tuple[int, ...]]:
    """Shapes of the blocks that an allgather or a reduce-scatter moves."""
    layout = step.source if step.kind is Kind.ALLGATHER else step.destination
    return [tuple(stop - start for start, stop in layout.box(rank)) for rank in range(ranks)]


def redistributed(found: tuple[Any, Any], exact: tuple[int, int], what: str) -> None:
    """Bytes within 1% of the busiest rank's. Messages to each of the others, and maybe to itself;
    fewer where towers are cut across.
    """
    assert found[1] == pytest.approx(exact[1], rel=0.01), what
    assert 1 <= found[0] <= exact[0] + 2, what


@pytest.mark.parametrize(("collectives", "batch"), [("ring", 7), ("ring", 24), ("tree", 7)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 8])
def test_priced_bytes_and_messages_match_the_busiest_rank(ranks: int, collectives: str,
                                                          batch: int) -> None:
    """Halos and allreduces equal the walked exchanges. So do gathers of even blocks.

    A ring's bytes are exact for any blocks (messages count empty ones as well); Bruck sends some
    blocks more often than others: a block more or less for each of its rounds, at most.
    Redistributions before a lazy gather: see below.
    """
    gather = "eager" if batch == 24 else "lazy"
    for strategy in one_pass(ranks):
        for step, cost in priced_steps(strategy, ranks, batch, gather=gather,
                                       collectives=collectives):
            if step.group is None and collectives == "tree":
                continue  # the ring's plan has the same
            exact, found, what = busiest(step, ranks), (cost.messages,
                                                        cost.sent_bytes), f"{strategy} {step.label}"
            if step.kind in (Kind.HALO, Kind.ALLREDUCE):
                assert found == exact, what
            elif step.kind is Kind.REDISTRIBUTE and gather == "lazy":
                redistributed(found, exact, what)
            elif step.group is not None:
                shapes = parts_of(step, ranks)
                largest = max(math.prod(shape) for shape in shapes) * step.item_bytes
                if len(set(shapes)) == 1:
                    assert found == exact, what
                elif step.algorithm == "ring":
                    assert found[0] >= exact[0] and found[1] == exact[1], what
                else:
                    rounds = math.ceil(math.log2(step.group.size))
                    assert found[0] == exact[0] and abs(found[1]
                                                        - exact[1]) <= rounds * largest, what


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8])
def test_priced_bytes_of_redistributions(ranks: int) -> None:
    """Redistributions of even samples, gathered lazily."""
    for strategy in one_pass(ranks):
        for step, cost in priced_steps(strategy, ranks, 24):
            if step.kind is Kind.REDISTRIBUTE:
                redistributed((cost.messages, cost.sent_bytes), busiest(step, ranks),
                              f"{strategy} {step.label}")


@pytest.mark.parametrize("ranks", [3, 5, 7])
def test_data_that_every_rank_has_cost_nothing(ranks: int) -> None:
    """Gathered activations are everywhere: a grouped convolution, cut across its towers, finds its
    channels at home.
    """
    steps = priced_steps("filter", ranks, 24, gather="eager", collectives="ring")
    found = [(step, cost) for step, cost in steps if step.kind is Kind.REDISTRIBUTE
             and step.phase is Phase.FORWARD]
    assert found and all(busiest(step, ranks) == (0, 0) for step, _ in found)
    assert all((cost.messages, cost.sent_bytes, cost.seconds) == (0, 0, 0.0) for _, cost in found)


def even() -> Network:
    """Sizes that 2, 4, 8 and 16 divide, windows and groups among the layers."""
    net = Chain("even", (16, 32, 32))
    net.add(Conv2d, "conv1", out_channels=32, kernel=(3, 3),
            padding=(1, 1)).add(ReLU, "relu1").add(LRN, "norm", size=3)
    net.add(MaxPool2d, "pool", kernel=(2, 2),
            stride=(2, 2)).add(Conv2d, "conv2", out_channels=32, groups=4).add(ReLU, "relu2")
    net.add(Conv2d, "conv3", out_channels=16, kernel=(3, 3), padding=(1, 1)).add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=64).add(ReLU, "relu3").add(Linear, "fc2", out_features=16)
    return net.add(LogisticCrossEntropy, "loss").build()


@pytest.mark.parametrize(("seed", "ranks"), [(seed, (2, 4, 8, 16)[seed % 4]) for seed in range(24)])
def test_priced_bytes_of_any_configurations(seed: int, ranks: int) -> None:
    """Even sizes, a random configuration for every layer: collectives and halos equal the walked
    exchanges.

    So do redistributions where every rank holds a part of its own; windows beside them count
    within a fifth. Each destination asks one of several copies: priced as if evenly, although the
    busiest copy may serve three times the mean.
    """
    network = even()
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, ranks, 32, "random", random_configs(network, seed, ranks), collectives="ring",
                machine=LOCAL)
    steps = schedule_for(network, plan).steps
    for step, cost in zip(steps, price(network, plan, LOCAL).steps, strict=True):
        if not isinstance(step, Comm):
            continue
        exact = busiest(step, ranks)
        if step.kind is not Kind.REDISTRIBUTE:
            assert (cost.messages, cost.sent_bytes) == exact, step.label
            continue
        windows = any(isinstance(a.relation, Window) and a.relation.kernel > 1
                      for side in (step.source, step.destination) for a in side.axes)
        if step.source.replicas == 1:
            assert cost.sent_bytes == pytest.approx(exact[1], rel=0.2 if windows else 0), step.label
        else:
            assert exact[1] / 3 <= cost.sent_bytes <= 2 * exact[1], step.label


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_library_collectives_count_as_one_message(ranks: int) -> None:
    for strategy in one_pass(ranks):
        for step, cost in priced_steps(strategy, ranks, 24, collectives="mpi"):
            if step.group is not None and len(set(parts_of(step, ranks))) == 1:
                assert (cost.messages,
                        cost.sent_bytes) == busiest(step, ranks), f"{strategy} {step.label}"


def test_uneven_library_collectives_count_the_largest_contribution() -> None:
    for step, cost in priced_steps("domain:4x1", 4, 24, collectives="mpi"):
        if step.group is not None:
            assert (cost.messages, cost.sent_bytes) == busiest(step, 4), step.label


def works(plan: Plan) -> list[tuple[Compute, Work]]:
    """The compute steps of a plan with their work."""
    network = plan.network.build()
    load = Workload(network, plan)
    return [(s, load.of(s)) for s in schedule_for(network, plan).steps if isinstance(s, Compute)]


@pytest.mark.parametrize("strategy", ["data", "grid:2x3", "spatial", "domain:6x1", "owt"])
def test_work_keys(strategy: str) -> None:
    """A calibrated time covers the whole operation: its key is the same whatever the overlap, and
    interior and boundary share it.
    """
    network = SMALL.build()
    done = works(plan_of(strategy, 6, 12, overlap="full"))
    whole = works(plan_of(strategy, 6, 12, overlap="none"))
    assert {w.key for _, w in done} == {w.key
                                        for _, w in whole} and all(
                                            w.fraction == 1.0 for _, w in whole)
    measured = replace(LOCAL, compute={w.key: 1.0 for _, w in whole})
    for _, work in done:
        assert timed(measured, work)[0] == work.fraction
        assert timed(LOCAL, work)[0] == roofline_s(LOCAL, work) >= 0
    for layer in network.layers:
        parts = [w for s, w in done if s.layer == layer.name and s.op in (Op.INTERIOR, Op.BOUNDARY)]
        assert sum(w.fraction for w in parts) == pytest.approx(1.0 if parts else 0.0)


def test_one_rank_does_all_work_of_the_network() -> None:
    network = SMALL.build()
    listed = [w for _, w in works(plan_of("data", 1, 3))]
    products = [w for w in listed if w.kind in ("conv2d", "linear")]
    per_sample = sum(layer.forward_flops(network.input_shape(layer))
                     for layer in network.matmul_layers)
    first = network.matmul_layers[0]
    for op, share in (("forward", per_sample), ("backward_weight", per_sample),
                      ("backward", per_sample - first.forward_flops(network.input_shape(first)))):
        assert sum(w.flops for w in products if w.op == op) == pytest.approx(3 * share), op
    conv = next(w for w in listed if w.kind == "conv2d")
    assert conv.key == "conv2d.forward x=3x3x67x67 y=3x96x15x15 k=11x11 s=4x4 d=1x1 g=1 float32"
    assert next(layer for layer in network.layers if isinstance(layer, Conv2d)).kernel == (11, 11)
    assert sum(w.flops for w in listed if w.op == "update") == 5 * network.parameters


@pytest.mark.parametrize("strategy", ["data", "filter", "grid:2x3", "owt"])
def test_work_is_divided(strategy: str) -> None:
    """Six ranks compute a sixth of the products each (sizes divide evenly)."""
    spec = NetworkSpec("alexnet", (3, 67, 67), 24)
    alone, split = (sum(w.flops for s, w in works(plan_of(name, ranks, 12, spec))
                        if w.kind in ("conv2d", "linear"))
                    for name, ranks in (("data", 1), (strategy, 6)))
    assert split == pytest.approx(alone / 6, rel=0.05)


def test_cori_trains_alexnet_in_the_papers_time() -> None:
    """1.2 million images at 4 images per rank: 12.2 to 12.6 thousand seconds on one KNL."""
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    p = price(spec.build(), plan_of("data", 512, 2048, spec, CORI, overlap="none"), CORI,
              samples=1_200_000)
    assert p.epoch_s is not None
    assert 12_200 < p.compute_s * 1_200_000 / 2048 * 512 < 12_600
    assert p.epoch_s == pytest.approx(p.iteration_s * 1_200_000 / 2048)


def test_published_total_speedups() -> None:
    """Gholami et al., P = 512, B = 2048: 2.1x (best grid for all layers) and 2.5x (in the fully
    connected ones) over pure batch.
    """
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    network = spec.build()

    def fastest(pattern: str) -> float:
        found = [auto.price_named(network, spec, s, 512, 2048, CORI, overlap="none")
                 for s in auto.expand(pattern, 512)]
        return min(c.iteration_s for c in found)

    data = fastest("data")
    assert 2.0 < data / fastest("grid:*") < 2.6
    assert 2.3 < data / fastest("grid-fc:*") < 3.1


def test_prediction_contract() -> None:
    network = SMALL.build()
    p = price(network, plan_of("grid:2x2", 4, 8), LOCAL, samples=800)
    assert isinstance(p, Prediction)
    data = p.to_json(steps=True)
    for name in ("network", "machine", "strategy", "ranks", "batch", "iteration_s", "epoch_s",
                 "compute_s", "communication_s",
                 "exposed_communication_s", "communication_bytes", "memory_bytes", "fits", "layers",
                 "phases", "steps"):
        assert name in data
    assert set(data["layers"][0]["config"]) == {"n", "c", "h", "w", "d", "k"}
    assert sum(layer["compute_s"] for layer in data["layers"]) == pytest.approx(p.compute_s)
    assert sum(layer["communication_s"]
               for layer in data["layers"]) == pytest.approx(p.communication_s)
    assert sum(phase["compute_s"]
               for phase in data["phases"].values()) == pytest.approx(p.compute_s)
    assert p.epoch_s == pytest.approx(100 * p.iteration_s)
    tiny = replace(LOCAL, device=replace(LOCAL.device, memory_bytes=1000))
    assert not price(network, plan_of("data", 2, 4), tiny).fits


def test_auto_takes_a_plan_as_good_as_the_fastest_that_fits() -> None:
    spec = NetworkSpec("lenet5", (1, 28, 28), 10)
    network = spec.build()
    found = auto.best(network, spec, 6, 72, LOCAL)
    times = [c.iteration_s for c in found]
    # a lower bound rules out pipelines
    tried = {name for name in named(6) if not name.startswith("pipeline")}
    assert times[1:] == sorted(times[1:]) and times_as_fast(found[0], found[1]).as_good
    assert tried <= {c.strategy for c in found}
    for c in found[:3]:
        assert c.iteration_s == pytest.approx(price(network, c.plan, LOCAL).iteration_s, rel=1e-12)
    least = min(c.memory_bytes for c in found)
    small = replace(LOCAL, device=replace(LOCAL.device, memory_bytes=least))
    fits = [c.fits for c in auto.best(network, spec, 6, 72, small)]
    assert fits == sorted(fits, reverse=True) and fits[0] and not fits[-1]
    assert auto.expand("grid:*", 6) == ["grid:1x6", "grid:2x3", "grid:3x2", "grid:6x1"]
    assert auto.expand("ds:*", 4) == ["ds:1x4", "ds:2x2", "ds:4x1"]
    assert all(c.plan.configs["fc1"].n <= 2 for c in auto.best(network, spec, 4, 2, LOCAL))
