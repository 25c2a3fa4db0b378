"""Every configuration of a producer against every one of a consumer at once, tested against each
pair alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.network.halo import halo_of
from hpcpar.cost.network.volumes import Volumes, volumes
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.layout import needed, owned
from hpcpar.plan.plan import NetworkSpec
from hpcpar.schedule.pattern_family import patterns
from hpcpar.schedule.steps import Group, Kind, Pattern
from hpcpar.search.layerwise import Search

FIELDS = ("sent", "messages_sent", "received", "messages_received", "span")


def entry(values: Any, at: tuple[int, int], shape: tuple[int, int]) -> Any:
    return np.broadcast_to(values, shape)[at]


def group_of(pattern: Pattern, at: tuple[int, int], shape: tuple[int, int]) -> Group:
    digits = [MeshAxis(int(entry(d.stride, at, shape)), int(entry(d.size, at, shape)))
              for d in pattern.mesh_axes]
    return Group(tuple(d for d in digits if d.size > 1))


@pytest.mark.parametrize(("name", "ranks"), [("lenet5", 4), ("lenet5", 12), ("inception_v3", 6)])
def test_all_pairs_at_once_equal_single_pairs(name: str, ranks: int) -> None:
    net = network(name)
    spec = NetworkSpec(name, net.image_shape, net.classes)
    found = Search(net, spec, ranks, 4 * ranks, files.load("p100x4x4"))
    rng = np.random.default_rng(0)
    seen: set[Kind | None] = set()
    for i in rng.permutation(len(found.edges))[:12]:
        a, b, layer, which = found.edges[i]
        producer, consumer = found.units[a], found.units[b]
        tail, behind = producer.layers[-1], len(producer.layers) > 1
        rows = rng.integers(len(producer.space), size=8)
        columns = rng.integers(len(consumer.space), size=8)
        shape = (len(rows), len(columns))
        have = owned(net, tail, producer.space.config(rows, behind).reshaped((-1, 1)), 4 * ranks)
        want = needed(net, layer, consumer.space.config(columns).reshaped((1, -1)), 4 * ranks,
                      which)
        together = patterns(have, want)
        both_ways = [volumes(*ends, ranks)
                     for ends in ((have, want), (want, have), (want, want))]
        through = halo_of(have, want).through_items
        for at in itertools.product(range(shape[0]), range(shape[1])):
            one = owned(net, tail, producer.space.one(int(rows[at[0]]), behind), 4 * ranks)
            other = needed(net, layer, consumer.space.one(int(columns[at[1]])), 4 * ranks, which)
            ends = ((one, other), (other, one), (other, other))
            for ways, alone, pair, moved in zip(together, patterns(one, other), ends, both_ways,
                                                strict=True):
                seen.add(alone.kind)
                assert entry(ways.code, at, shape) == alone.code
                if alone.group is not None:
                    assert group_of(ways, at, shape) == alone.group
                single: Volumes = volumes(*pair, ranks)
                for field in FIELDS:
                    assert entry(getattr(moved, field), at, shape) == getattr(single, field)
                if alone.kind is Kind.HALO:
                    assert entry(through, at, shape) == halo_of(one, other).through_items
    assert {Kind.HALO, Kind.REDISTRIBUTE, Kind.ALLGATHER, Kind.REDUCE_SCATTER} <= seen
