"""Bytes of movements are the intersections of boxes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hpcpar.schedule.edges import edges
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Comm, Kind, Phase
from tests.mpi.networks import random_unet
from tests.mpi.plans import random_plan as unet_plan
from tests.unit.brute import lacking, lacking_sums, random_plan, received

RANDOM = [(seed, ranks) for seed, ranks in enumerate((2, 3, 4, 6, 8) * 8)]


@cache
def steps_of(seed: int, ranks: int) -> tuple[Comm, ...]:
    """Messages of training under a random plan: two tests look at them."""
    return lower(*random_plan(seed, ranks), lambda step: ("ring", 1)).comms


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_forward_bytes_are_intersections(seed: int, ranks: int) -> None:
    """Every rank receives the elements that it needs and does not own, by masks over the whole
    tensor.
    """
    network, plan = random_plan(seed, ranks)
    steps = {s.tensor: s for s in lower(network, plan, lambda step: ("ring", 1),
                                        training=False).comms if s.phase is Phase.FORWARD}
    for (e,) in edges(network, plan).values():
        missing = lacking(e.owned, e.needed, ranks)
        assert missing == (received(steps[e.tensor], ranks) if e.tensor in steps
                           else [0] * ranks), e.tensor


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_forward_bytes_of_unets_are_intersections(ranks: int) -> None:
    """Enlarged and padded images, of which skipped tensors have several readers."""
    rng = np.random.default_rng(ranks)
    for seed in range(4):
        network, batch = random_unet(seed)
        plan = replace(unet_plan(network, batch, ranks, rng), microbatches=1)
        steps = {s.tensor: s for s in lower(network, plan, lambda step: ("ring", 1),
                                            training=False).comms if s.phase is Phase.FORWARD}
        for into in edges(network, plan).values():
            for e in into:
                missing = lacking(e.owned, e.needed, ranks)
                assert missing == (received(steps[e.tensor], ranks) if e.tensor in steps
                                   else [0] * ranks), e.tensor


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_backward_bytes_are_intersections(seed: int, ranks: int) -> None:
    """Every rank receives a summand of each element that it owns from every other part of the work
    that needs it.

    Rings add on the way: of a reduce-scatter all ranks together receive as much, of an allreduce 2
    / p of it. Complete gradients of pieces are gathered.
    """
    network, plan = random_plan(seed, ranks)
    steps = {s.tensor: s for s in steps_of(seed, ranks) if s.phase is Phase.BACKWARD}
    for (e,) in edges(network, plan).values():
        step = steps.get(e.gradient)
        if step is None:
            continue
        got, missing = received(step, ranks), lacking_sums(network, e, ranks)
        if step.kind is Kind.ALLGATHER:
            assert got == lacking(e.needed, e.owned, ranks), step.label
        elif step.group is None:
            assert got == missing, step.label
        elif step.kind is Kind.REDUCE_SCATTER:
            assert sum(got) == sum(missing), step.label
        else:
            assert sum(got) * step.group.size == 2 * sum(missing), step.label


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_ranks_lack_nothing_where_no_gradient_moves(seed: int, ranks: int) -> None:
    """A layer behind the first weights whose input's gradient is not moved lacks no summand
    anywhere.
    """
    network, plan = random_plan(seed, ranks)
    steps = {s.tensor for s in steps_of(seed, ranks)}
    first = network.layers.index(network.weighted[0])
    for layer in network.layers[first + 1:]:
        (e,) = edges(network, plan)[layer.name]
        if e.gradient not in steps:
            assert not any(lacking_sums(network, e, ranks)), e.tensor
