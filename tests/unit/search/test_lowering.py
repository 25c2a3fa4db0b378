"""Lowerings that searches share: equal to what is worked out afresh, and never more than their
bound.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.network.halo import through_items
from hpcpar.cost.network.paired import Measures, amounts, halo_of
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.plan.layout import needed, owned
from hpcpar.plan.lines import Block, Lines
from hpcpar.plan.plan import NetworkSpec
from hpcpar.schedule.paired import Patterns, patterns
from hpcpar.schedule.steps import Kind
from hpcpar.search import lowering, space
from hpcpar.search.layerwise import Search


@cache
def lenet5() -> Network:
    return network("lenet5")


def search(machine: str = "p100x4x4", ranks: int = 4, batch: int = 16) -> Search:
    net = lenet5()
    return Search(net, NetworkSpec("lenet5", net.image_shape, net.classes), ranks, batch,
                  files.load(machine))


def forget() -> None:
    lowering._kept.clear()
    space._space.cache_clear()


def arrays(found: Search) -> list[Any]:
    tables = [*found.tables.nodes, *found.tables.edges.values()]
    return [array for t in tables for array in (t.seconds, t.bytes)]


def test_a_search_that_finds_everything_again_is_the_same() -> None:
    """Of another machine, and with another search between: only whole numbers are kept, never a
    price.
    """
    forget()
    fresh = arrays(search("abci-v100"))
    forget()
    search("p100x4x4")
    search("p100x4x4", ranks=2)
    assert len(lowering._kept) == 2
    again = arrays(search("abci-v100"))
    assert len(lowering._kept) == 2
    for a, b in zip(fresh, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lowerings_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that fit one at a time only the later is kept, of one that does not fit none."""
    forget()
    fresh = arrays(search())
    (_, _, _, cases), = lowering._kept.values()
    monkeypatch.setattr(lowering, "MOST_MOVED", cases)
    forget()
    for batch in (16, 32):
        found = search(batch=batch)
        (_, _, units, _), = lowering._kept.values()
        assert units is found.units
    for a, b in zip(fresh, arrays(search()), strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.setattr(lowering, "MOST_MOVED", cases - 1)
    forget()
    search()
    assert not lowering._kept


def test_options_have_lowerings_of_their_own() -> None:
    """The same layers under another type, memory factor or mini-batch are lowered again."""
    net, machine = lenet5(), files.load("p100x4x4")
    spec = NetworkSpec("lenet5", net.image_shape, net.classes)
    forget()
    for count, options in enumerate(({}, {"dtype": "float64"}, {"gamma": 0.5},
                                     {"batch_norm": "local"}), 1):
        Search(net, spec, 4, 16, machine, **options)
        assert len(lowering._kept) == count
    bytes_of = [Search(net, spec, 4, 16, machine, gamma=gamma).smallest().bytes
                for gamma in (1.0, 0.5)]
    assert bytes_of[1] < bytes_of[0]


@pytest.mark.parametrize(("name", "ranks"), [("lenet5", 4), ("lenet5", 12), ("inception_v3", 6)])
def test_pairs_of_layouts_worked_out_together_are_those_worked_out_alone(name: str, ranks: int) -> None:
    """Patterns, amounts and halos of all pairs of configurations, against a pair of layouts of a
    single configuration each.
    """
    net = network(name)
    spec = NetworkSpec(name, net.image_shape, net.classes)
    found = Search(net, spec, ranks, 4 * ranks, files.load("p100x4x4"))
    rng = np.random.default_rng(0)
    links = [found.links[i] for i in rng.permutation(len(found.links))[:12]]
    some = [(rng.integers(len(found.units[a].space), size=8),
             rng.integers(len(found.units[b].space), size=8)) for a, b, *_ in links]
    two = []
    for (a, b, layer, which), (rows, columns) in zip(links, some, strict=True):
        tail, here, there = found.units[a].layers[-1], found.units[a], found.units[b]
        have = here.space.config(rows, len(here.layers) > 1)
        two.append((owned(net, tail, have, 4 * ranks),
                    needed(net, layer, there.space.config(columns), 4 * ranks, which)))
    lines = Lines(two)
    block, measures = Block(lines, [[i] for i in range(len(two))]), Measures(lines, ranks)
    ways, seen = Patterns(lines).of(block), set[Kind | None]()
    for (group, index), (a, b, layer, which), (rows, columns) in zip(block.of(block.index), links, some, strict=True):
        sums, spans = measures.amounts(group, index).reshape(2, 4, -1), measures.spans(group, index).ravel()
        for at, (row, column) in enumerate(itertools.product(rows, columns), group.cases.start):
            one = found.units[a].space.one(int(row), len(found.units[a].layers) > 1)
            other = found.units[b].space.one(int(column))
            have, want = owned(net, found.units[a].layers[-1], one, 4 * ranks), needed(net, layer, other, 4 * ranks, which)
            for moves, alone, holder, wanter, amount in zip(
                ways, patterns(have, want), (have, want), (want, have), sums[..., at - group.cases.start], strict=True
            ):
                assert moves.code[at] == alone.code
                seen.add(alone.kind)
                each = amounts(holder, wanter, ranks)
                assert (*amount, spans[at - group.cases.start]) == (each.out, each.out_count, each.into, each.into_count, each.block)
                if alone.kind is Kind.HALO:
                    assert through_items(measures.halo(group, block.index[:, at: at + 1]))[0] == through_items(halo_of(have, want))
                if alone.group is not None:
                    assert moves.of(slice(at, at + 1), ()).group == alone.group
    assert {Kind.HALO, Kind.REDISTRIBUTE, Kind.ALLGATHER, Kind.REDUCE_SCATTER} <= seen


def test_bytes_of_one_entry_are_those_of_the_table() -> None:
    """An entry that is worked out alone is the one in the whole table."""
    found = search(ranks=8)
    rng = np.random.default_rng(0)
    for table in (*found.tables.nodes, *found.tables.edges.values()):
        place = tuple(int(rng.integers(n)) for n in table.seconds.shape)
        alone = table.held.at(place)
        assert alone == table.bytes[place]
