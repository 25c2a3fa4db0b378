"""The memory plan of a rank: which buffers it has, when each is alive, and where it lies."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.lower import lower
from hpcpar.schedule.memory_plan.allocation import MemoryPlan, plan_memory
from hpcpar.schedule.memory_plan.packing import ALIGNMENT_BYTES
from hpcpar.schedule.memory_plan.views import Buffer
from tests.mpi.networks import random_graph
from tests.mpi.plans import random_plan, staged_plan
from tests.unit.schedule.test_sent_bytes import ring


def network(kernel: int = 2) -> Network:
    return (Chain("small", (2, 6, 6)).add(Conv2d, "conv", out_channels=3, kernel=3, padding=1)
            .add(ReLU, "relu").add(MaxPool2d, "pool", kernel=kernel, stride=2)
            .add(Flatten, "flatten").add(Linear, "fc", out_features=4)
            .add(SoftmaxCrossEntropy, "loss").build())


#: Layer, whether it holds gradients, shape, and the first and last step of each life.
Row = tuple[str, bool, tuple[int, ...], list[tuple[int, int]]]


def planned(strategy: str, ranks: int, rank: int, net: Network | None = None, **options: Any
            ) -> MemoryPlan:
    net = net or network()
    plan = make_plan(NetworkSpec.of(net), strategy, ranks, 6, network=net, **options)
    return plan_memory(net, plan, rank, [lower(net, plan, ring)], training=True)


def rows(memory: MemoryPlan) -> list[Row]:
    return [(b.layer, b.gradient, b.shape, [(life.start, life.stop - 1) for life in b.lives])
            for b in memory.buffers if b.items]


def test_a_buffer_lives_from_its_first_write_to_its_last_read() -> None:
    """Forward steps 0 to 5, loss.backward, fc.backward, its weight's gradient (8), flatten, pool,
    relu, and the gradient of conv's weight (12).
    """
    assert rows(planned("data", 1, 0)) == [
        ("fc", False, (6, 4), [(4, 5)]),
        ("fc", True, (6, 4), [(5, 8)]),  # the loss computes it in the forward pass
        ("flatten", False, (6, 27), [(2, 8)]),  # pool writes it
        ("flatten", True, (6, 27), [(7, 10)]),
        ("relu", False, (6, 3, 6, 6), [(0, 11)]),  # conv's output: ReLU works in place
        ("relu", True, (6, 3, 6, 6), [(10, 12)]),
        ("input", False, (6, 2, 6, 6), [(0, 12)])]


def test_recomputed_values_live_twice() -> None:
    """conv and relu run again as steps 10 and 11, before pool.backward (12)."""
    found = {(row[0], row[1]): row[3] for row in rows(planned("data", 1, 0, recompute=2))}
    assert found["relu", False] == [(0, 2), (10, 13)]
    assert found["input", False] == [(0, 14)]
    assert found["flatten", False] == [(2, 8)]


def test_neighbors_rows_lie_around_a_ranks_own() -> None:
    """Rank 0 has three of six rows and needs a fourth; pooling reads two of its three rows, and
    the gradient of the third stays zero.
    """
    memory = planned("spatial", 2, 0)
    assert [row for row in rows(memory) if len(row[2]) == 4] == [
        ("pool", False, (6, 3, 1, 3), [(5, 6)]),  # sent to where samples are cut
        ("pool", True, (6, 3, 1, 3), [(15, 16)]),
        ("pool", False, (6, 3, 3, 6), [(1, 18)]),
        ("relu", True, (6, 3, 3, 6), [(16, 20)]),
        ("conv", False, (6, 2, 4, 6), [(0, 20)])]
    assert [b.shape for b in memory.buffers if b.zero] == [(6, 3, 3, 6)]


def test_one_buffer_holds_own_and_needed_rows() -> None:
    """Rank 1 has rows 3 to 5, and pooling reads rows 2 and 4."""
    found = rows(planned("spatial", 2, 1, network(kernel=1)))
    assert ("pool", False, (6, 3, 4, 6)) in [row[:3] for row in found]


def test_a_sender_keeps_a_message_until_it_writes_there_again() -> None:
    """Three micro-batches: stage 0 keeps its outputs apart, and sends them until the end. Stage 1
    has one gradient for all, and sends it until the next micro-batch's pool.backward.
    """
    sender = rows(planned("pipeline:2x1", 2, 0, microbatches=3))
    assert [row[3] for row in sender if row[:2] == ("conv", False)] == [
        [(0, 47)], [(2, 47)], [(9, 47)]]
    assert [row[3] for row in sender if row[0] == "input"] == [[(0, 28)], [(2, 36)], [(9, 44)]]
    receiver = rows(planned("pipeline:2x1", 2, 1, microbatches=3))
    assert [row[3] for row in receiver if row[:2] == ("relu", True)] == [
        [(25, 28), (33, 36), (41, 44)]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_buffers_that_live_at_once_lie_apart(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for seed in range(8):
        net, batch = random_graph(seed)
        make = staged_plan if ranks > 1 and seed % 2 else random_plan
        plan = make(net, batch, ranks, rng)
        memory = plan_memory(net, plan, ranks - 1, [lower(net, plan, ring)], training=True)
        items, unit = memory.place(), ALIGNMENT_BYTES // plan.item_bytes
        for b in memory.buffers:
            assert b.first % unit == 0 and b.first + b.items <= items
        pairs = [(a, b) for a, b in combinations(memory.buffers, 2) if _overlap(a, b)]
        assert not any(_meet(a, b) for a, b in pairs)
        sharing = {id(b) for pair in pairs for b in pair}
        for b in memory.buffers:  # a buffer that begins at zero, and shares memory, is cleared
            assert b.clears == (b.zero and id(b) in sharing)


def _overlap(a: Buffer, b: Buffer) -> bool:
    return max(a.first, b.first) < min(a.first + a.items, b.first + b.items)


def _meet(a: Buffer, b: Buffer) -> bool:
    return any(max(x.start, y.start) < min(x.stop, y.stop) for x in a.lives for y in b.lives)
