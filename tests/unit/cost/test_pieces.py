"""Movements are walked at few sizes, and their times at all others follow exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.network.collective import Placed
from hpcpar.cost.network.contention import NetworkModel, Placement
from hpcpar.cost.network.links import FloatArray
from hpcpar.cost.network.pieces import Pieces
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.schedule.algorithms.base import Collective
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Kind

SLOPES = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=5)


@given(chains=SLOPES, sizes=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40, unique=True),
       jump=st.floats(1e-2, 1e5), saved=st.floats(0, 0.5))
def test_every_value_is_the_function_s(chains: list[tuple[float, float]], sizes: list[float],
                                       jump: float, saved: float) -> None:
    """A maximum of lines that jumps once, asked for in several batches, the second in another
    order of sizes.
    """
    def function(x: FloatArray) -> FloatArray:
        lines = np.array([a + b * x for a, b in chains])
        return lines.max(axis=0) + 1 - saved * (x <= jump)

    known = Pieces(function, np.array([jump]))
    for batch in (sizes[::2], sizes[1::2], sizes):
        asked = np.array(sorted(batch))
        np.testing.assert_allclose(known(asked), function(asked), rtol=2e-11)


def test_a_straight_piece_needs_three_points() -> None:
    calls: list[float] = []

    def function(x: FloatArray) -> FloatArray:
        calls.extend(x.tolist())
        return np.maximum(1 + x, 3 * x - 5)

    known = Pieces(function, np.zeros(0))
    np.testing.assert_allclose(known(np.linspace(0.1, 2.9, 100)), 1 + np.linspace(0.1, 2.9, 100))
    assert len(calls) == 3
    known(np.linspace(0.1, 9, 1000))
    assert len(calls) < 30


def machine(small_alpha_s: float | None) -> Machine:
    """Nodes of 4 and racks of 12 ranks, whose links are shared, and an eager limit."""
    levels = tuple(Level(f"level {i}", size, 1e-6 * (i + 1)**2, 1e-10 * (i + 1)**2,
                         links=float(i > 0), small_alpha_s=small_alpha_s, small_bytes=8192)
                   for i, size in enumerate((4, 12, 0)))
    return replace(files.load("local"), levels=levels, collectives=(), add_s_per_byte=3e-10)


@pytest.mark.parametrize("small_alpha_s", [None, 4e-7])
@pytest.mark.parametrize("p", [6, 13, 24, 37, 50])
def test_collectives_take_as_long_as_their_walks(p: int, small_alpha_s: float | None) -> None:
    """At sizes from bytes to gigabytes, some of them exactly at the eager limit."""
    place = Placed(NetworkModel(machine(small_alpha_s)), Placement.of(p, 1, 0, 1, p))
    sizes = np.unique(np.concatenate([np.geomspace(64, 1e9, 120), 8192.0 * np.arange(1, p + 1),
                                      np.linspace(1e5, 4e5, 60)]))
    for name in ("ring", "doubling", "halving"):
        entry = ALGORITHMS[name]
        for segments in (1, *entry.pieces(Kind.ALLREDUCE)):
            collective = Collective.of_blocks(Kind.ALLREDUCE, p, 5040, segments)
            walked_s = place._walk(entry, collective)
            if isinstance(walked_s, Pieces):
                walked_s = walked_s.function
            walked = walked_s(sizes / (p * 5040))
            priced = place.seconds(Kind.ALLREDUCE, name, segments, 0, sizes)
            np.testing.assert_allclose(priced, walked, rtol=2e-11)
