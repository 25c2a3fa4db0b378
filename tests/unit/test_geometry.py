"""The geometry that searches share: equal to what is worked out afresh, and never more than its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import geometry, space
from hpcpar.search.layerwise import Search


def search(machine: str = "p100x4x4", ranks: int = 4, batch: int = 16) -> Search:
    net = network("lenet5")
    return Search(net, NetworkSpec("lenet5", net.image_shape, net.classes), ranks, batch, files.load(machine))


def forget() -> None:
    geometry._kept.clear()
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
    again = arrays(search("abci-v100"))
    assert len(geometry._kept) == kept > 0
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


def test_bytes_of_one_entry_are_those_of_the_table() -> None:
    """An entry that is worked out alone is the one in the whole table."""
    found = search(ranks=8)
    rng = np.random.default_rng(0)
    for table in (*found.tables.nodes, *found.tables.edges.values()):
        place = tuple(int(rng.integers(n)) for n in table.seconds.shape)
        alone = table.held.at(place)
        assert alone == table.bytes[place]
