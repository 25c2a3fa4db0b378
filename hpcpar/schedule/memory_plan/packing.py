"""Arrays in one piece of memory, of which some are never alive at the same time."""

from __future__ import annotations

import bisect
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

#: Arrays begin at multiples of so many bytes: a cache line, and what vector units like.
ALIGNMENT_BYTES = 64
#: Layouts that are tried, and pairs of arrays that are looked at for them, until the best so far is
#: taken.
_TRIES, _PAIRS = 200, 3_000_000


def pack(sizes: Sequence[int], alive: Sequence[int]) -> tuple[list[int], int]:
    """Places for arrays in one piece of memory, each as low as those placed before allow that are
    alive with it.

    Orders are tried in turn (by size, by birth, by length of life), then the best of them with
    those arrays first that lay on top, until nothing can be gained: no layout is smaller than what
    is alive at once.

    Parameters
    ----------
    sizes : sequence of int
    alive : sequence of int
        For each array a bit for every moment at which it is alive.

    Returns
    -------
    places : list of int
    total : int
        Size of the piece.
    """
    there = [i for i, size in enumerate(sizes) if size and alive[i]]
    born = {i: alive[i] & -alive[i] for i in there}
    orders = [
        sorted(there, key=lambda i: (-sizes[i], i)),
        sorted(there, key=lambda i: (born[i], -alive[i].bit_length(), i)),
        sorted(there, key=lambda i: (-alive[i].bit_count(), -sizes[i], i)),
        sorted(there, key=lambda i: (-alive[i].bit_count() * sizes[i], i)),
    ]
    least, best, order = peak(sizes, alive)[0], _Layout([], 1 << 62), orders[0]
    for tried in orders:
        found = _fit(sizes, alive, tried, best.total - 1)
        if found is not None:
            best, order = found, tried
        if best.total <= least:
            break
    draw = random.Random(0)
    for _ in range(min(_TRIES, _PAIRS // max(1, len(there) ** 2))):
        if best.total <= least:
            break
        # what lies on top comes first, or changes places with another
        top = [i for i in order if best.places[i] + sizes[i] == best.total]
        tried = top + [i for i in order if i not in top] if order[:len(top)] != top else list(order)
        a, b = tried.index(draw.choice(top)), draw.randrange(len(tried))
        if tried == order:
            tried[a], tried[b] = tried[b], tried[a]
        found = _fit(sizes, alive, tried, best.total)
        if found is not None:
            best, order = found, tried
    return (best.places, best.total) if there else ([0] * len(sizes), 0)


@dataclass(frozen=True)
class _Layout:
    places: list[int]
    total: int


def _fit(sizes: Sequence[int], alive: Sequence[int], order: Sequence[int],
         limit: int) -> _Layout | None:
    """Place the arrays in an order; None where they need more than `limit`."""
    places, total = [0] * len(sizes), 0
    # start, stop, life: from the lowest up, so that the first gap is found first
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
    return _Layout(places, total)


def peak(sizes: Sequence[int], alive: Sequence[int]) -> tuple[int, int]:
    """The most that is alive at once, and the first moment at which it is."""
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
