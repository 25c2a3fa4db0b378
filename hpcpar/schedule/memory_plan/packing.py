"""Decides where arrays lie in one piece of memory; those never alive together may overlap."""

from __future__ import annotations

import bisect
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

#: Arrays begin at multiples of this size: a cache line, and the alignment of vector units.
ALIGNMENT_BYTES = 64
#: Limits of the search for a better layout: layouts tried, and pairs of arrays compared.
_TRIES, _PAIRS = 200, 3_000_000


def pack(sizes: Sequence[int], alive: Sequence[int]) -> tuple[list[int], int]:
    """Place each array at the lowest address where it overlaps no earlier array alive with it.

    Try several orders (by size, by birth, by length of life), then variants of the best order that
    place its topmost arrays first. Stop when the total equals the peak, the sum of the arrays alive
    at once, because no layout is smaller.

    Parameters
    ----------
    alive : sequence of int
        For each array, a bit for every moment at which it is alive.

    Returns
    -------
    places : list of int
        The arrays' addresses.
    total : int
        Size of the piece of memory.
    """
    used = [i for i, size in enumerate(sizes) if size and alive[i]]
    born = {i: alive[i] & -alive[i] for i in used}
    orders = [
        sorted(used, key=lambda i: (-sizes[i], i)),
        sorted(used, key=lambda i: (born[i], -alive[i].bit_length(), i)),
        sorted(used, key=lambda i: (-alive[i].bit_count(), -sizes[i], i)),
        sorted(used, key=lambda i: (-alive[i].bit_count() * sizes[i], i)),
    ]
    least, (places, total), order = peak(sizes, alive)[0], ([0], 1 << 62), orders[0]
    for tried in orders:
        layout = _fit(sizes, alive, tried, total - 1)
        if layout is not None:
            (places, total), order = layout, tried
        if total <= least:
            break
    draw = random.Random(0)
    for _ in range(min(_TRIES, _PAIRS // max(1, len(used) ** 2))):
        if total <= least:
            break
        # the topmost arrays come first, or one of them swaps with another array
        top = [i for i in order if places[i] + sizes[i] == total]
        tried = top + [i for i in order if i not in top] if order[:len(top)] != top else list(order)
        a, b = tried.index(draw.choice(top)), draw.randrange(len(tried))
        if tried == order:
            tried[a], tried[b] = tried[b], tried[a]
        layout = _fit(sizes, alive, tried, total)
        if layout is not None:
            (places, total), order = layout, tried
    return (places, total) if used else ([0] * len(sizes), 0)


def _fit(sizes: Sequence[int], alive: Sequence[int], order: Sequence[int],
         limit: int) -> tuple[list[int], int] | None:
    """Place the arrays in this order; return None where they need more than `limit`."""
    places, total = [0] * len(sizes), 0
    # (start, stop, life), lowest first, so the search meets the lowest gap first
    placed: list[tuple[int, int, int]] = []
    for i in order:
        at, life, size = 0, alive[i], sizes[i]
        for start, stop, other in placed:
            if at + size <= start:
                break
            if stop > at and other & life:
                at = stop
        places[i], total = at, max(total, at + size)
        if total > limit:
            return None
        bisect.insort(placed, (at, at + size, life))
    return places, total


def moments(lives: Iterable[range]) -> int:
    """A bit for every moment of these lives."""
    bits = 0
    for life in lives:
        bits |= ((1 << len(life)) - 1) << life.start
    return bits


def peak(sizes: Sequence[int], alive: Sequence[int]) -> tuple[int, int]:
    """The largest total size alive at once, and the first moment at which it occurs."""
    changes: dict[int, int] = defaultdict(int)
    for size, life in zip(sizes, alive, strict=True):
        at = 0
        while size and life:
            gap = (life & -life).bit_length() - 1
            life >>= gap
            length = (life + 1 & ~life).bit_length() - 1
            changes[at + gap] += size
            changes[at + gap + length] -= size
            at, life = at + gap + length, life >> length
    now = most = first = 0
    for moment in sorted(changes):
        now += changes[moment]
        if now > most:
            most, first = now, moment
    return most, first
