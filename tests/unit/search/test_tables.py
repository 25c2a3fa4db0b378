"""The search's tables: what they say of any choice is what the priced schedule says of that plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.memory.memory import Memory, edge_memory, layer_memory, wire_bytes
from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.network.contention import NetworkModel, contended
from hpcpar.cost.network.transfer import traffic
from hpcpar.cost.price_family import price_family
from hpcpar.machine import files
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Machine
from hpcpar.network import builtin
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Add,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.schedule.lower import outline
from hpcpar.schedule.steps import Comm
from hpcpar.search import table_search
from hpcpar.search.table_search import Search
from tests.mpi.zoo import gates
from tests.unit.closed import price

#: Choices priced together, and one by one.
TOGETHER, ALONE = 30, 1


def residual() -> Network:
    """A stem, a block with a projection, a block without, batch normalization everywhere."""
    net = Graph("residual", (3, 12, 10))
    net.add(Conv2d, "stem", out_channels=8, kernel=(3, 3), padding=(1, 1), bias=False)
    net.add(BatchNorm, "stem.norm")
    x = net.add(ReLU, "stem.relu")
    for block, (channels, stride) in (("a", (12, 2)), ("b", (12, 1))):
        net.add(Conv2d, f"{block}.1", out_channels=channels, kernel=(3, 3), padding=(1, 1),
                stride=(stride, stride), bias=False, after=x)
        net.add(BatchNorm, f"{block}.1.norm")
        net.add(ReLU, f"{block}.1.relu")
        net.add(Conv2d, f"{block}.2", out_channels=channels, kernel=(3, 3), padding=(1, 1),
                bias=False)
        y = net.add(BatchNorm, f"{block}.2.norm")
        if stride > 1:
            net.add(Conv2d, f"{block}.short", out_channels=channels, kernel=(1, 1),
                    stride=(stride, stride), bias=False, after=x)
            x = net.add(BatchNorm, f"{block}.short.norm")
        net.add(Add, f"{block}.sum", after=(y, x))
        x = net.add(ReLU, f"{block}.relu")
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def inception() -> Network:
    """Branches of several kinds that a concatenation joins, a concatenation read twice,
    normalization by neighbors, groups.
    """
    net = Graph("inception", (4, 16, 16))
    net.add(Conv2d, "stem", out_channels=8, kernel=(5, 5), padding=(2, 2))
    net.add(ReLU, "stem.relu")
    net.add(LRN, "stem.norm")
    x = net.add(MaxPool2d, "stem.pool", kernel=(3, 3), stride=(2, 2), ceil_mode=True)
    for block in "ab":
        one = net.add(Conv2d, f"{block}.1", out_channels=8, kernel=(1, 1), after=x)
        net.add(Conv2d, f"{block}.2", out_channels=4, kernel=(1, 1), after=x)
        net.add(ReLU, f"{block}.2.relu")
        two = net.add(Conv2d, f"{block}.3", out_channels=8, kernel=(3, 3), padding=(1, 1), groups=2)
        net.add(AvgPool2d, f"{block}.pool", kernel=(3, 3), stride=(1, 1), padding=(1, 1), after=x)
        three = net.add(Conv2d, f"{block}.4", out_channels=6, kernel=(1, 1))
        x = net.add(Concat, f"{block}.join", after=(one, two, three))
    net.add(ReLU, "relu")
    net.add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=24)
    net.add(ReLU, "fc1.relu")
    net.add(Dropout, "fc1.drop")
    net.add(Linear, "fc2", out_features=12)
    net.add(LogisticCrossEntropy, "loss")
    return net.build()


@cache
def network(name: str) -> Network:
    own = {"residual": residual, "inception": inception, "gates": gates}
    return own.get(name, lambda: builtin.network(name))()


def search(name: str, ranks: int, batch: int, machine: str, **options: Any) -> Search:
    """The whole tables, nothing pruned."""
    net = network(name)
    return whole(net, NetworkSpec(name, net.image_shape, net.classes), ranks, batch,
                 files.load(machine), **options)


def whole(net: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine,
          **options: Any) -> Search:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_search, "FULL_TABLES_UP_TO", 10**9)
        return Search(net, spec, ranks, batch, machine, **options)


def check(found: Search, seed: int = 0, **priced: Any) -> None:
    """Random choices, one in five of each layer's first configurations, against the priced
    schedule.

    Where several tensors come together, those that cross different levels of the machine travel
    side by side even without overlap, and the loss of micro-batches beside the updates; the papers'
    objective adds them.
    """
    net, tables = found.network, found.tables
    rng = np.random.default_rng(seed)
    sizes = np.array([len(u.space) for u in found.units])
    places = rng.integers(0, sizes, (TOGETHER, len(sizes)))
    places[::5] %= 3
    configs = {}
    for at, unit in enumerate(found.units):
        for i, layer in enumerate(unit.layers):
            configs[layer.name] = unit.space.config(places[:, at], behind=i > 0)
    plan = replace(found.plan, overlap="none", configs=configs)
    costs = price_family(net, plan, found.machine, **priced)
    seconds = np.array([tables.price(list(row)) for row in places])
    held = np.array([tables.memory(list(row)) for row in places])
    np.testing.assert_allclose(seconds, np.broadcast_to(costs.compute_s + costs.communication_s,
                                                        TOGETHER), rtol=1e-9)
    if plan.microbatches == 1 and (net.is_chain or len(found.machine.levels) == 1):
        np.testing.assert_allclose(seconds, np.broadcast_to(costs.iteration_s, TOGETHER), rtol=1e-9)
    assert (costs.iteration_s <= seconds * (1 + 1e-9)).all()
    assert (held == held.astype(int)).all() and (seconds > 0).all()
    for at in range(ALONE):
        single = {layer.name: u.space.one(int(places[at, n]), i > 0)
                  for n, u in enumerate(found.units) for i, layer in enumerate(u.layers)}
        plan_of_one = replace(found.plan, overlap="none", configs=single)
        p = price(net, plan_of_one, found.machine, **priced)
        assert seconds[at] == pytest.approx(p.compute_s + p.communication_s, rel=1e-9)
        assert held[at] >= p.memory_bytes
        assert held[at] == apart_bytes(net, plan_of_one, found, priced)


def apart_bytes(net: Network, plan: Plan, found: Search, priced: dict[str, Any]) -> int:
    """Bytes of all arrays of a plan, each in a place of its own."""
    training = priced.get("training", True)
    out = outline(net, plan, chooser(NetworkModel(found.machine), plan), training=training)
    network_model = NetworkModel(contended(found.machine, priced.get("contention")))
    moved = {}
    for step in out.steps:
        if isinstance(step, Comm):
            t = traffic(step, network_model, plan.ranks)
            moved[step.key] = t.through_bytes
    parts = [layer_memory(net, plan, layer, training) for layer in net.layers]
    parts += [edge_memory(net, plan, e, training) for layer in net.layers if layer.inputs
              for e in out.edges.into(layer, plan.samples_of_a_pass)]
    network_model = sum(wire_bytes(step, moved[step.key]) for step in out.steps
                if isinstance(step, Comm))
    whole = sum(parts, Memory(0, 0, 0, 0, 0, network_model)).flying(plan.microbatches)
    return int(whole.scaled(priced.get("gamma", 1.0)).total_bytes)


@pytest.mark.parametrize(("name", "ranks", "batch", "machine"), [
    ("lenet5", 2, 8, "local"), ("lenet5", 6, 13, "abci-v100"), ("lenet5", 8, 32, "p100x4x4"),
    ("residual", 2, 3, "abci-v100"), ("residual", 6, 12, "local"), ("residual", 8, 16, "p100x4x4"),
    ("inception", 4, 8, "local"), ("inception", 6, 7, "p100x4x4"), ("inception", 8, 8, "abci-v100"),
    ("gates", 4, 8, "local"), ("gates", 6, 7, "p100x4x4"),
])
def test_tables_are_the_priced_schedule(name: str, ranks: int, batch: int, machine: str) -> None:
    check(search(name, ranks, batch, machine), seed=ranks)


@pytest.mark.parametrize(
    "options",
    [{"batch_norm": "local"}, {"synchronization": "sharded", "optimizer": "adam"},
     {"synchronization": "server", "collectives": "ring"}, {"synchronization": "server-host"},
     {"precision": "fp64", "collectives": "tree"}],
)
def test_tables_follow_the_options(options: dict[str, Any]) -> None:
    check(search("residual", 8, 16, "p100x4x4", **options))


def test_tables_follow_measured_movements() -> None:
    found = search("lenet5", 4, 16, "p100x4x4")
    known = tuple(Factors(level.name, kind, "direct", (100.0, 1e5), (3.0, 0.5))
                  for level in found.machine.levels
                  for kind in ("halo", "redistribute"))
    spec = NetworkSpec("lenet5", found.network.image_shape, found.network.classes)
    check(whole(found.network, spec, 4, 16, replace(found.machine, collectives=known)), seed=4)


@pytest.mark.parametrize(("name", "ranks", "batch"), [
    ("residual", 6, 12), ("inception", 8, 8), ("gates", 4, 1), ("lenet5", 3, 5)])
def test_tables_of_inference(name: str, ranks: int, batch: int) -> None:
    check(search(name, ranks, batch, "p100x4x4", training=False), training=False)


def test_tables_follow_micro_batches() -> None:
    check(search("lenet5", 4, 16, "p100x4x4", microbatches=2))


def test_tables_follow_a_given_contention() -> None:
    check(search("alexnet", 8, 64, "p100x4x4", contention=16.0), contention=16.0)


def test_hideable_is_the_sum_of_gradients() -> None:
    """Backpropagation may hide the steps that the schedule calls the gradients' exchange."""
    found = search("residual", 4, 8, "p100x4x4")
    places = [min(1, len(u.space) - 1) for u in found.units]
    single = {layer.name: u.space.one(places[n], i > 0) for n, u in enumerate(found.units)
              for i, layer in enumerate(u.layers)}
    p = price(found.network, replace(found.plan, overlap="none", configs=single), found.machine)
    hideable = sum(float(t.hideable[c]) for t, c in zip(found.tables.nodes, places, strict=True))
    assert hideable == pytest.approx(p.phases["gradient"]["communication_s"],
                                     rel=1e-12) and hideable > 0


def test_units_join_elementwise_layers_to_the_layer_before() -> None:
    found = search("residual", 2, 4, "local")
    names = [[layer.name for layer in unit.layers] for unit in found.units]
    assert names[:3] == [["input"], ["stem", "stem.norm", "stem.relu"],
                         ["a.1", "a.1.norm", "a.1.relu"]]
    assert ["a.sum", "a.relu"] in names and sum(map(len, names)) == len(found.network.layers)
    names = [[layer.name for layer in unit.layers] for unit in search("gates", 2, 4, "local").units]
    assert ["product", "leaky", "affine"] in names and ["expand", "sigmoid"] in names
