"""Layouts of arrays in one piece of memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.schedule.memory_plan.packing import pack, peak

LIVES = st.integers(0, (1 << 24) - 1)
ARRAYS = st.lists(st.tuples(st.integers(0, 50), LIVES), max_size=14)


def at_once(sizes: list[int], alive: list[int]) -> int:
    """The most bytes alive at any moment, moment by moment."""
    return max((sum(size for size, life in zip(sizes, alive, strict=True) if life >> at & 1)
                for at in range(24)), default=0)


@settings(max_examples=200)
@given(ARRAYS)
def test_arrays_alive_together_never_overlap(arrays: list[tuple[int, int]]) -> None:
    sizes, alive = [a[0] for a in arrays], [a[1] for a in arrays]
    places, total = pack(sizes, alive)
    assert peak(sizes, alive)[0] == at_once(sizes, alive) <= total <= sum(sizes)
    for i in range(len(sizes)):
        assert not alive[i] or 0 <= places[i] <= total - sizes[i]
        for j in range(i):
            if alive[i] & alive[j] and sizes[i] and sizes[j]:
                assert places[i] + sizes[i] <= places[j] or places[j] + sizes[j] <= places[i]


def test_nested_lifetimes_leave_no_gaps() -> None:
    """Outputs of a chain live until their backward step; each gradient lives for two steps: the
    layout is as small as can be.
    """
    n = 40
    sizes = [1 + (7 * i) % 11 for i in range(n)] + [1 + (7 * i) % 11 for i in range(n)]
    alive = [((1 << 2 * (n - i)) - 1) << i
             for i in range(n)] + [3 << (2 * n - i - 1) for i in range(n)]
    assert pack(sizes, alive)[1] <= 1.02 * peak(sizes, alive)[0]


def test_nothing_takes_no_memory() -> None:
    assert pack([], []) == ([], 0) and pack([5], [0]) == ([0], 0)
