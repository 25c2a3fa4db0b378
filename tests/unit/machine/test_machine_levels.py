"""Which level a block of ranks needs, by one rule for single values and arrays; and the links that
units share.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.machine.model import Device, Level, Machine

DEVICE = Device(10**9, 1e9, 1e9)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to four levels, each a whole number of units of the one inside; the outermost bounded or
    not.
    """
    ranks, levels = 1, []
    for i in range(draw(st.integers(1, 4))):
        ranks *= draw(st.integers(1, 6))
        levels.append(Level(f"level {i}", ranks, 1.0, 1.0))
    if draw(st.booleans()):
        levels.append(Level("all", 0, 1.0, 1.0))
    return Machine("m", DEVICE, tuple(levels))


@given(machines(), st.lists(st.tuples(st.integers(1, 400), st.integers(1, 500)), min_size=1,
                            max_size=20))
def test_arrays_follow_the_rule_of_single_values(machine: Machine,
                                                 pairs: list[tuple[int, int]]) -> None:
    blocks, ranks = (np.array(column) for column in zip(*pairs, strict=True))
    expected = [machine.level_index_for(int(b), int(r)) for b, r in pairs]
    assert machine.level_index_for(blocks, ranks).tolist() == expected
    shared = machine.level_index_for(blocks, int(ranks[0]))
    assert shared.tolist() == [machine.level_index_for(int(b), int(ranks[0])) for b in blocks]
    table = machine.level_index_for(blocks[:, None], ranks[None, :])
    assert table.shape == (len(pairs), len(pairs)) and table.diagonal().tolist() == expected


@given(machines(), st.integers(1, 300))
def test_all_ranks_of_an_innermost_unit_are_equivalent(machine: Machine, ranks: int) -> None:
    whole = machine.levels[0].ranks
    assert machine.all_alike(ranks) == (len(machine.levels) == 1 or whole == 0 or ranks <= whole)


@given(machines(), st.integers(1, 6), st.integers(1, 8), st.integers(1, 8))
def test_no_aligned_group_leaves_its_unit(machine: Machine, stride: int, size: int,
                                          count: int) -> None:
    """Against walking every aligned block, at every offset of its members."""
    block = stride * size
    ranks = block * count
    index = machine.level_index_for(block, ranks) if size > 1 else machine.level_index_for(1, ranks)
    groups = [[base + offset + k * stride for k in range(size)] for base in range(0, ranks, block)
              for offset in range(stride)]

    def holds(unit: int) -> bool:
        return unit == 0 or all(len({rank // unit for rank in group}) == 1 for group in groups)

    inside = [i for i, level in enumerate(machine.levels) if holds(level.ranks)]
    assert index == (inside[0] if inside else len(machine.levels) - 1)


def test_numpy_scalars_and_lone_arrays() -> None:
    machine = Machine("m", DEVICE, (Level("node", 4, 1.0, 1.0), Level("rack", 68, 1.0, 1.0),
                                    Level("system", 0, 1.0, 1.0)))
    assert isinstance(machine.level_index_for(np.int64(4), 64), int)
    assert [machine.level_index_for(b, 1024)
            for b in (1, 2, 4, 8, 34, 68, 136)] == [0, 0, 0, 2, 1, 1, 2]
    assert machine.level_index_for(8, 68) == 1  # one rack holds all ranks, so no group can leave it
    assert machine.level_index_for(8, np.array([4, 8, 68, 136])).tolist() == [0, 1, 1, 2]
    assert [machine.inner_ranks(i) for i in range(3)] == [1, 4, 68]


def test_ranks_share_the_links_of_their_unit() -> None:
    assert Level("x", 4, 1.0, 1.0).shared_links == math.inf
    assert Level("x", 4, 1.0, 1.0, links=2).shared_links == 2
    assert Level("x", 4, 1.0, 1.0, links=34,
                 oversubscription=3).shared_links == pytest.approx(34 / 3)
