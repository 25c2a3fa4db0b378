"""The size of gradient buckets that a plan takes where the user gives none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.price_family import price_family
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import entry_of
from hpcpar.prediction.price import price
from hpcpar.schedule.buckets import summed
from hpcpar.schedule.steps import Comm, Compute, Op, Phase
from hpcpar.search import auto
from hpcpar.search.bucket_sizes import fastest_sizes

#: Networks, strategies, ranks, batches, machines and options of plans.
CASES: list[tuple[str, str, int, int, str, dict[str, Any]]] = [
    ("lenet5", "data", 16, 256, "cori-knl", {}),
    ("lenet5", "data", 16, 256, "cori-knl", {"overlap": "none"}),
    ("lenet5", "data", 8, 64, "h100x8", {"microbatches": 3, "overlap": "gradient"}),
    ("lenet5", "data", 4, 32, "local", {"collectives": "tree"}),
    ("alexnet", "pipeline:4x4", 16, 128, "k80x16", {}),
    ("alexnet", "owt-b", 16, 128, "k80x16", {}),
    ("alexnet", "data", 64, 2048, "abci-v100", {}),
    ("vgg16", "grid-fc:4x16", 64, 512, "k80x16", {}),
    ("cosmoflow", "ds:16x4", 64, 64, "abci-v100", {"batch_norm": "local"}),
]


@cache
def problem(case: int) -> tuple[Network, Plan, Machine, int, float]:
    """A plan without buckets, its machine, and the fastest size with its time."""
    name, strategy, ranks, batch, machine, options = CASES[case]
    net, loaded = network(name), files.load(machine)
    plan = make_plan(NetworkSpec(name, net.image_shape, net.classes), strategy, ranks, batch,
                     network=net, machine=loaded, **options)
    sizes, seconds = fastest_sizes(net, plan, loaded, price_family(net, plan, loaded))
    return net, plan, loaded, int(sizes[0]), float(seconds[0])


def sizes_of_rows(net: Network, item_bytes: int = 4) -> set[int]:
    """The sizes of the gradients of all rows of weighted layers, and 0."""
    sums = [0, *accumulate(layer.parameters(net.input_shape(layer)) * item_bytes
                           for layer in net.weighted)]
    return {later - earlier for i, later in enumerate(sums) for earlier in sums[:i + 1]}


def priced_s(net: Network, plan: Plan, machine: Machine, bucket_bytes: int) -> float:
    return float(price_family(net, replace(plan, bucket_bytes=bucket_bytes), machine).iteration_s)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_time_equals_the_plans_with_this_bucket_size(case: int) -> None:
    net, plan, machine, size, seconds = problem(case)
    assert priced_s(net, plan, machine, size) == pytest.approx(seconds, rel=1e-12)


@given(st.data())
def test_no_other_bucket_size_is_faster(data: st.DataObject) -> None:
    net, plan, machine, _, seconds = problem(data.draw(st.sampled_from(range(len(CASES)))))
    near = st.sampled_from(sorted(sizes_of_rows(net))).flatmap(
        lambda size: st.sampled_from([max(0, size - 1), size, size + 1]))
    given_bytes = data.draw(near | st.integers(0, 1 << 30))
    assert priced_s(net, plan, machine, given_bytes) >= seconds * (1 - 1e-12)


def test_each_case_of_a_family_gets_its_own_size() -> None:
    """Through every named strategy of the same layers, on two levels."""
    net, machine = network("alexnet"), files.load("k80x16")
    spec = NetworkSpec("alexnet", net.image_shape, net.classes)
    task = auto.task(net, spec, 16, 512, machine, bucket_bytes=None)
    names = [name for name in auto.strategies_to_try(net, 16, machine)
             if not entry_of(name).apart]
    together = auto.priced(task, names)
    assert len({c.bucket_bytes for c in together}) > 1
    for c in together[::5]:
        alone = auto.price_named(net, spec, c.strategy, 16, 512, machine, bucket_bytes=None)
        assert (alone.iteration_s, alone.plan.bucket_bytes) == (
            pytest.approx(c.exact().iteration_s, rel=1e-12), c.plan.bucket_bytes)


def test_resnet50_on_1024_ranks_takes_few_large_rings() -> None:
    """Each ring pays 82 ms of latency."""
    net, machine = network("resnet50"), files.load("abci-v100")
    spec = NetworkSpec("resnet50", net.image_shape, net.classes)
    chosen = auto.price_named(net, spec, "data", 1024, 32768, machine, bucket_bytes=None,
                              collectives="ring", batch_norm="local")
    for size in (0, 1 << 20, 25 << 20, 100_000_000, 1 << 30):
        other = price(net, replace(chosen.plan, bucket_bytes=size), machine)
        assert chosen.iteration_s <= other.iteration_s
    assert chosen.iteration_s < 0.5 * priced_s(net, chosen.plan, machine, 25 << 20)


@cache
def best_with_buckets_s() -> float:
    """The time of the best plan of the test below."""
    net = network("lenet5")
    spec = NetworkSpec("lenet5", net.image_shape, net.classes)
    return auto.best(net, spec, 8, 64, files.load("p100x4x4"), bucket_bytes=None)[0].iteration_s


@pytest.mark.parametrize("size", sorted(sizes_of_rows(network("lenet5"))))
def test_no_given_bucket_size_beats_the_best_plan(size: int) -> None:
    net, machine = network("lenet5"), files.load("p100x4x4")
    spec = NetworkSpec("lenet5", net.image_shape, net.classes)
    task = auto.task(net, spec, 8, 64, machine, bucket_bytes=size)
    least_s = min(c.iteration_s for c in auto.priced(task, auto.strategies_to_try(net, 8, machine)))
    assert best_with_buckets_s() <= least_s * (1 + 1e-12)


def test_a_bucket_does_not_delay_gradients_that_the_next_layer_needs() -> None:
    """Behind the gradients of the next layer's inputs, and what they move; the last at the end."""
    net, plan, machine, *_ = problem(0)
    costs = price_family(net, replace(plan, bucket_bytes=250_000), machine)
    steps = costs.schedule.steps
    sums = [i for i, step in enumerate(steps)
            if isinstance(step, Comm) and step.phase is Phase.GRADIENT]
    covers = [move.covers for i in sums if isinstance(move := steps[i], Comm)]
    assert [len(names) for names in covers] == [2, 1, 2]
    order = [layer.name for layer in summed(plan, net.layers)]
    for i, names in zip(sums[:-1], covers, strict=False):
        before = next(step for step in reversed(steps[:i]) if isinstance(step, Compute))
        following = order[order.index(names[-1]) + 1]
        assert (before.op, before.layer) == (Op.BACKWARD, following)
    last = steps[sums[-1] - 1]
    assert isinstance(last, Compute) and last.op is Op.BACKWARD_WEIGHT
