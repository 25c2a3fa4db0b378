"""The priced schedule against ParaDL's Table 3 in its own setting, and what must hold of prices
whatever the plan.

The setting: a flat machine whose adding and copying is free, rings, activations gathered by the
layer that made them, no overlap, even sizes. Where the table's accounting and the executed schedule
differ, the exact difference is part of the test:

* every weight's gradient is summed by itself, biases with it, and the loss is summed over all ranks
  (24 bytes);
* the last layer's output is gathered for the softmax (the table's sums end before it);
* between a layer and the next stands the pooled activation, which the backward pass sums: smaller
  than the layer's output;
* a halo's backward pass returns what the forward pass received, rows of x, where Eq 10 counts rows
  of dL/dy, and the images have none;
* a pipeline's messages travel while the next micro-batch is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.papers.equations import paradl
from bench.papers.equations.paradl_values import layer_values
from hpcpar.machine import files
from hpcpar.machine.model import Device, Level, Machine
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, SoftmaxCrossEntropy
from hpcpar.papers.gholami import HockneyLink
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategy import STRATEGIES, grid_sizes
from hpcpar.prediction.prediction import Prediction, StepCost
from hpcpar.search.searches import SEARCHES
from tests.strategies import named
from tests.unit.closed import price

ALPHA_S, BETA_S = 1e-5, 1e-9
FLAT = Machine("flat", Device(10**12, 1e12, 1e12), (Level("all", 0, ALPHA_S, BETA_S),))
LINK = HockneyLink(ALPHA_S, 4 * BETA_S)
B = 48


def small(pooled: bool) -> Network:
    """Three convolutions, the last without a halo, and two fully connected layers; sizes divide by
    2, 3 and 4.
    """
    net = Chain("small", (4, 24, 24))
    net.add(Conv2d, "conv1", out_channels=12, kernel=(3, 3), padding=(1, 1)).add(ReLU, "relu1")
    net.add(Conv2d, "conv2", out_channels=24, kernel=(5, 5), padding=(2, 2)).add(ReLU, "relu2")
    if pooled:
        net.add(MaxPool2d, "pool", kernel=(2, 2), stride=(2, 2))
    net.add(Conv2d, "conv3", out_channels=12,
            kernel=(1, 1)).add(ReLU, "relu3").add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=48).add(ReLU, "relu4").add(Linear, "fc2", out_features=24)
    return net.add(SoftmaxCrossEntropy, "loss").build()


NETWORKS = {True: small(True), False: small(False)}
PRODUCTS = 5
#: One iteration per epoch: terms are seconds per iteration.
JOB = paradl.TrainingRun(B, B)


def priced(strategy: str, ranks: int, pooled: bool = False, machine: Machine = FLAT,
           **options: Any) -> Prediction:
    network = NETWORKS[pooled]
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    chosen = {"overlap": "none", "collectives": "ring"} | options
    plan = make_plan(spec, strategy, ranks, B, gather="eager", network=network,
                     machine=machine, **chosen)
    return price(network, plan, machine)


def costs(pooled: bool) -> list[paradl.Table3Layer]:
    """Table 3's layers: those with weights, and the pooling between them."""
    return layer_values(NETWORKS[pooled])


def products(pooled: bool) -> list[paradl.Table3Layer]:
    return [a for a in costs(pooled) if a.gathers]


def seconds(steps: Iterable[StepCost], phase: str, kind: str) -> float:
    return sum(s.seconds for s in steps if s.is_comm and s.phase == phase
               and s.label.endswith(f".{kind}"))


def gathered(p: int, items: float) -> float:
    """An allgather of `items` in all; an allreduce costs two."""
    return (p - 1) * paradl.p2p_s(items / p, LINK)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-12)


def loss_s(p: int) -> float:
    return paradl.ring_allreduce_s(p, 6, LINK)


def extra_of_gradients(p: int, parts: int = 1) -> float:
    """The schedule's cost beyond one allreduce of all weights over p: an allreduce for each layer,
    with its biases.
    """
    biases = sum(a.bias for a in costs(False))
    one_more = 2 * (p - 1) * ALPHA_S
    of_biases = 2 * (p - 1) / p * LINK.beta_s * biases / parts
    return (PRODUCTS - 1) * one_more + of_biases


# -- Table 3 ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 48])
def test_data(p: int, pooled: bool) -> None:
    found, table = priced("data", p, pooled), paradl.table3_data(costs(pooled), JOB, p, LINK)
    more = extra_of_gradients(p) + loss_s(p) if p > 1 else 0.0
    assert found.communication_s == near(table.gradient_s + more)
    assert found.phases["forward"]["communication_s"] == found.phases["backward"][
        "communication_s"] == 0


@pytest.mark.parametrize("p", [2, 3, 4, 12])
def test_filter(p: int) -> None:
    """Without pooling 3 (p - 1) sum (alpha + B y_l / p beta), and one gather more: the last layer's
    output.
    """
    found, table = priced("filter", p), paradl.table3_filter(costs(False), JOB, p, LINK)
    more = gathered(p, B * products(False)[-1].y) + loss_s(p)
    assert found.communication_s == near(table.layerwise_s + more)
    assert {s.phase for s in found.steps if s.is_comm} == {"forward", "backward", "loss"}


@pytest.mark.parametrize("p", [2, 3, 4, 12])
def test_filter_with_pooling(p: int) -> None:
    """The backward pass sums gradients of what the next layer reads: a quarter of conv2's output.
    """
    found, table = priced("filter", p, True), paradl.table3_filter(costs(True), JOB, p, LINK)
    conv2, conv3 = products(True)[1:3]
    less = 2 * (p - 1) / p * LINK.beta_s * B * (conv2.y - conv3.x)
    assert conv3.x == conv2.y / 4
    more = gathered(p, B * products(True)[-1].y) + loss_s(p)
    assert found.communication_s == near(table.layerwise_s + more - less)


@pytest.mark.parametrize("p", [2, 4, 12])
def test_channel(p: int) -> None:
    """The first layer is cut by filters, whose output is gathered; the last layer's sum of parts
    comes on top.
    """
    found, table = priced("channel", p), paradl.table3_channel(costs(False), JOB, p, LINK)
    first, *_, last = products(False)
    more = 2 * gathered(p, B * last.y) - gathered(p, B * first.y) + loss_s(p)
    assert found.communication_s == near(table.layerwise_s + more)
    assert seconds(found.steps, "forward",
                   "allreduce") == near(2 * sum(gathered(p, B * a.y) for a in products(False)[1:]))
    assert seconds(found.steps, "backward",
                   "allgather") == near(sum(gathered(p, B * a.x) for a in products(False)[1:]))


@pytest.mark.parametrize(("p1", "p2"), [(2, 2), (3, 2), (2, 4), (4, 3), (12, 12)])
def test_df(p1: int, p2: int) -> None:
    found, table = priced(f"df:{p1}x{p2}",
                          p1 * p2), paradl.table3_df(costs(False), JOB, p1, p2, LINK)
    last = gathered(p2, B / p1 * products(False)[-1].y)
    more = last + extra_of_gradients(p1, p2) + loss_s(p1 * p2)
    assert found.communication_s == near(table.communication_s + more)
    assert seconds(found.steps, "gradient", "allreduce") == near(
        table.gradient_s + extra_of_gradients(p1, p2))


def halo_difference(samples: float, sides: int) -> tuple[float, float]:
    """(what Eq 10 counts, what the schedule does): the schedule has `sides` neighbors, returns
    rows of x, and none to the images.
    """
    table = schedule = 0.0
    for a in costs(False):
        if a.halo_x and a.halo_x[0]:
            table += 2 * (paradl.p2p_s(samples * a.halo_x[0], LINK)
                          + paradl.p2p_s(samples * a.halo_dy[0], LINK))
            schedule += sides * paradl.p2p_s(samples * a.halo_x[0],
                                             LINK) * (1 if a.name == "conv1" else 2)
    return table, schedule


@pytest.mark.parametrize(("p1", "p2"), [(1, 2), (1, 4), (1, 6), (2, 2), (4, 3), (3, 4)])
def test_spatial_and_ds(p1: int, p2: int) -> None:
    """With two parts each has one neighbor; Eq 10 prices one between two."""
    p = p1 * p2
    found = priced("spatial" if p1 == 1 else f"ds:{p1}x{p2}", p)
    table = paradl.table3_ds(costs(False), JOB, p1, (p2, 1), LINK)
    printed, done = halo_difference(B / p1, 1 if p2 == 2 else 2)
    assert table.halo_s == near(printed)
    halos = seconds(found.steps, "forward", "halo") + seconds(found.steps, "backward", "halo")
    assert halos == near(table.halo_s + done - printed)
    assert found.phases["gradient"]["communication_s"] + found.phases["loss"][
        "communication_s"] == near(
        table.gradient_s + extra_of_gradients(p) + loss_s(p)
    )
    # between image parts and sample parts every rank sends each of the others in its group a piece,
    # forward and back
    piece = B / p1 * products(False)[3].x / p2**2
    assert seconds(found.steps, "forward",
                   "redistribute") == near((p2 - 1) * paradl.p2p_s(piece, LINK))
    assert seconds(found.steps, "backward",
                   "redistribute") == near((p2 - 1) * paradl.p2p_s(piece, LINK))
    assert found.communication_s == near(
        halos + table.gradient_s + extra_of_gradients(p) + loss_s(p)
        + 2 * (p2 - 1) * paradl.p2p_s(piece, LINK)
    )


@lru_cache
def uniform(layers: int) -> Network:
    """Equal linear layers."""
    net = Chain("uniform", (64,))
    for i in range(layers):
        net.add(Linear, f"fc{i}", out_features=64)
    return net.add(SoftmaxCrossEntropy, "loss").build()


@pytest.mark.parametrize("segments", [1, 2, 4, 8])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_pipeline(p: int, segments: int) -> None:
    """Where nothing but messages costs time, an iteration is Table 3's p + S - 2 messages each way,
    less the latency of those that a stage sends one after the other.
    """
    network = uniform(p)
    machine = replace(FLAT, device=Device(10**12, 1e30, 1e30))
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = make_plan(spec, f"pipeline:{p}x1", p, B, network=network, machine=machine,
                     overlap="none", microbatches=segments)
    found = price(network, plan, machine)
    layers = layer_values(network)
    table = paradl.table3_pipeline(layers, JOB, [1] * p, segments, LINK)
    hop = paradl.p2p_s(B / segments * 64, LINK)
    assert table.p2p_s == near(2 * (p + segments - 2) * hop)
    hops = [s.seconds for s in found.steps if s.is_comm and s.phase != "loss"]
    assert hops == [near(hop)] * (2 * (p - 1) * segments)
    # the last stage also tells the others the loss, behind the gradients that it sends
    (telling,) = [s.seconds for s in found.steps if s.is_comm and s.phase == "loss"]
    latency = machine.levels[0].alpha_s
    there = table.p2p_s / 2 - (segments - 1) * latency
    told = segments * (hop - latency) + telling
    back = max(there, told) if segments > 1 else telling + there
    assert found.iteration_s == pytest.approx(there + back, rel=1e-9)


# -- what must hold of every price -----------------------------------------------------------------
MACHINES = {name: files.load(name) for name in ("local", "cori-knl", "abci-v100", "p100x4x4")}
SPECS = [NetworkSpec("lenet5", (1, 20, 20), 10), NetworkSpec("alexnet", (3, 67, 67), 20)]
BUILT = {spec.name: spec.build() for spec in SPECS}
FIXED = settings(max_examples=25,
                 phases=[Phase.explicit, Phase.generate])
FEW = settings(FIXED, max_examples=8)

networks, machines = st.sampled_from(SPECS), st.sampled_from(list(MACHINES.values()))
ranks_of, batches = st.sampled_from([2, 3, 4, 6, 8, 12, 16]), st.integers(1, 100)


@st.composite
def strategies(draw: st.DrawFn, least: int = 2) -> tuple[str, int]:
    """Any strategy that can be predicted, with its ranks."""
    ranks = draw(ranks_of.filter(lambda p: p >= least))
    names = [s for s in named(ranks) if not s.startswith("pipeline")
             or int(s.partition(":")[2].partition("x")[0]) <= 12]
    return draw(st.sampled_from(names)), ranks


def planned(spec: NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine,
            **options: Any) -> Plan:
    """The plan, with the algorithms that `machine` makes cheapest."""
    return make_plan(spec, strategy, ranks, batch, network=BUILT[spec.name],
                     machine=machine, **options)


def cost(spec: NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine,
         **options: Any) -> Prediction:
    return price(BUILT[spec.name], planned(spec, strategy, ranks, batch, machine, **options),
                 machine)


def same(a: Prediction, b: Prediction) -> None:
    assert (a.iteration_s, a.compute_s, a.communication_s, a.communication_bytes, a.memory) == (
        b.iteration_s, b.compute_s, b.communication_s, b.communication_bytes, b.memory
    )


ALONE = [entry.on((1,) * entry.numbers) for name, entry in STRATEGIES.items()
         if name not in SEARCHES]


@FIXED
@given(st.sampled_from(ALONE), networks, batches, machines)
def test_one_rank_communicates_nothing(strategy: str, spec: NetworkSpec, batch: int,
                                       machine: Machine) -> None:
    p = cost(spec, strategy, 1, batch, machine)
    assert not any(s.is_comm for s in p.steps)
    assert p.communication_s == p.exposed_communication_s == 0
    assert p.communication_bytes == p.memory.wire_bytes == 0
    same(p, cost(spec, "data", 1, batch, machine))


@FEW
@given(networks, ranks_of, batches, machines, st.sampled_from(["lazy", "eager"]),
       st.sampled_from(["none", "full"]))
def test_pure_cases_of_grids(spec: NetworkSpec, p: int, batch: int, machine: Machine, gather: str,
                             overlap: str) -> None:
    """A grid of one row or one column is the pure strategy."""
    prices = {s: cost(spec, s, p, batch, machine, gather=gather, overlap=overlap)
              for s in ("data", "filter", "spatial", "owt")}
    for grid, pure in ((f"grid:{p}x1", "filter"), (f"grid:1x{p}", "data"), (f"df:1x{p}", "filter"),
                       (f"df:{p}x1", "data"),
                       (f"ds:1x{p}", "spatial"), (f"ds:{p}x1", "data"), (f"domain:1x{p}", "data"),
                       (f"grid-fc:1x{p}", "data"),
                       (f"grid-fc:{p}x1", "owt"), (f"pipeline:1x{p}", "data")):
        same(cost(spec, grid, p, batch, machine, gather=gather, overlap=overlap), prices[pure])


@FIXED
@given(networks, strategies(), batches, machines, st.floats(1.0, 50.0), st.floats(1.0, 50.0))
def test_slower_links_never_help(spec: NetworkSpec, plan: tuple[str, int], batch: int,
                                 machine: Machine, alpha: float, beta: float) -> None:
    """Iteration time grows with alpha, with beta and with phi (of the same schedule)."""
    network, made = BUILT[spec.name], planned(spec, *plan, batch, machine)
    before = price(network, made, machine).iteration_s * (1 - 1e-12)
    for slower in ({"alpha_s": alpha}, {"beta_s_per_byte": beta}):
        levels = tuple(replace(level, **{k: getattr(level, k) * v for k, v in slower.items()})
                       for level in machine.levels)
        assert price(network, made, replace(machine, levels=levels)).iteration_s >= before
    shared = [price(network, made, machine, contention=phi).iteration_s
              for phi in sorted((1.0, alpha, beta))]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(shared))


@FEW
@given(networks, strategies(), batches, machines, st.sampled_from(["lazy", "eager"]))
def test_overlap_only_helps(spec: NetworkSpec, plan: tuple[str, int], batch: int, machine: Machine,
                            gather: str) -> None:
    """``none`` is the plain sum exactly; then gradients, then all else may hide; apart from the
    launches of split convolutions.
    """
    none, gradient, full = (cost(spec, *plan, batch, machine, overlap=o, gather=gather)
                            for o in ("none", "gradient", "full"))
    if not plan[0].startswith("pipeline"):
        total = 0.0
        for s in none.steps:
            total += s.seconds
        assert none.iteration_s == total
        assert none.exposed_communication_s == pytest.approx(none.communication_s, rel=1e-12)
    launches = sum(s.label.endswith(".interior")
                   for s in full.steps) * machine.device.launch_s
    assert gradient.iteration_s <= none.iteration_s * (1 + 1e-12)
    assert full.iteration_s <= gradient.iteration_s * (1 + 1e-12) + launches


@FEW
@given(networks, ranks_of, batches, st.sampled_from(["local", "cori-knl"]), st.data())
def test_placement_is_free_on_a_flat_machine(spec: NetworkSpec, p: int, batch: int, flat: str,
                                             data: st.DataObject) -> None:
    """Where all layers have the same sample groups: ds and grid-fc change them, and then it matters
    what a rank holds already.
    """
    machine, (rows, columns) = MACHINES[flat], data.draw(st.sampled_from(grid_sizes(p)))
    for name in ("grid", "df", "domain"):
        strategy = f"{name}:{rows}x{columns}"
        inner, outer = cost(spec, strategy, p, batch,
                            machine), cost(spec, f"{strategy}/outer", p, batch, machine)
        assert outer.iteration_s == pytest.approx(inner.iteration_s, rel=1e-12)
        assert (outer.communication_bytes, outer.memory) == (inner.communication_bytes,
                                                             inner.memory)
