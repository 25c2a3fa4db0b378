"""The geometry that searches share: equal to what is worked out afresh, and never more than its bound."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.direct import amounts
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import geometry, lowering, space
from hpcpar.search.layerwise import Search


@cache
def lenet5() -> Network:
    return network("lenet5")


def search(machine: str = "p100x4x4", ranks: int = 4, batch: int = 16) -> Search:
    net = lenet5()
    return Search(net, NetworkSpec("lenet5", net.image_shape, net.classes), ranks, batch, files.load(machine))


def forget() -> None:
    geometry._kept.clear()
    lowering._kept.clear()
    space._space.cache_clear()


def arrays(found: Search) -> list[Any]:
    tables = [*found.tables.nodes, *found.tables.edges.values()]
    return [array for t in tables for array in (t.seconds, t.bytes)]


def test_a_search_that_finds_everything_again_is_the_same() -> None:
    """Of another machine, and with another search between: only whole numbers are kept, never a price."""
    forget()
    fresh = arrays(search("abci-v100"))
    forget()
    search("p100x4x4")
    search("p100x4x4", ranks=2)
    kept = len(geometry._kept)
    assert len(lowering._kept) == 2
    again = arrays(search("abci-v100"))
    assert len(geometry._kept) == kept > 0 and len(lowering._kept) == 2
    for a, b in zip(fresh, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first; what is not kept is worked out again, to the same numbers."""
    forget()
    fresh = arrays(search())
    monkeypatch.setattr(geometry, "MOST_CASES", 500)
    forget()
    for _ in range(2):
        for a, b in zip(fresh, arrays(search()), strict=True):
            np.testing.assert_array_equal(a, b)
        assert 0 < sum(cases for _, _, cases in geometry._kept.values()) <= 500
        lowering._kept.clear()


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
    for count, options in enumerate(({}, {"dtype": "float64"}, {"gamma": 0.5}, {"batch_norm": "local"}), 1):
        Search(net, spec, 4, 16, machine, **options)
        assert len(lowering._kept) == count
    bytes_of = [Search(net, spec, 4, 16, machine, gamma=gamma).smallest().bytes for gamma in (1.0, 0.5)]
    assert bytes_of[1] < bytes_of[0]


@pytest.mark.parametrize("ranks", [4, 12])
def test_axes_compared_together_are_those_compared_alone(ranks: int) -> None:
    """Amounts of redistributions by axes that were stacked, against layouts that know nothing of each other."""
    forget()
    search(ranks=ranks)
    (low, *_), = lowering._kept.values()
    checked = 0
    for load in low.freight.loads:
        if load.amounts is None:
            continue
        holder, wanter = (replace(layout) for layout in (load.step.holder, load.step.wanter))
        for new, old in ((holder, load.step.holder), (wanter, load.step.wanter)):
            new.memo.update({key: value for key, value in old.memo.items() if key == "members"})
        alone = amounts(holder, wanter, ranks)
        for field in fields(alone):
            np.testing.assert_array_equal(getattr(alone, field.name), getattr(load.amounts, field.name))
        checked += 1
    assert checked > 5


def test_bytes_of_one_entry_are_those_of_the_table() -> None:
    """An entry that is worked out alone is the one in the whole table."""
    found = search(ranks=8)
    rng = np.random.default_rng(0)
    for table in (*found.tables.nodes, *found.tables.edges.values()):
        place = tuple(int(rng.integers(n)) for n in table.seconds.shape)
        alone = table.held.at(place)
        assert alone == table.bytes[place]
