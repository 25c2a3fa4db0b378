"""Many pairs of layouts compared along their axes in one go: equal axes cut alike once, those of one kind as a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.common import Along, Alongs, along, standing_for_all
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import CASES, Axis, Cuts, Layout
from hpcpar.plan.stack import members, stack_axes

#: Numbers of an array that is worked on at once: what a processor's cache holds.
MOST = 200_000


class Line(NamedTuple):
    """An axis of two layouts, and how each cuts it."""

    a: Axis
    b: Axis
    x: Cuts
    y: Cuts

    @property
    def key(self) -> Any:
        return (self.a, self.b, id(self.x), id(self.y))

    @property
    def kind(self) -> Any:
        """Lines of one kind can be stacked."""
        return (type(self.a.relation), type(self.b.relation), self.a.granule, self.b.granule, self.x.axis, self.y.axis)


def all_along(pairs: Sequence[tuple[Layout, Layout]], ranks: int) -> list[Alongs | None]:
    """What layouts have in common along each axis, where every configuration of one is paired with every one of the other."""
    every: dict[Any, Line] = {}
    keys: list[list[list[Any]] | None] = []
    for pair in pairs:
        plain = all(np.ndim(layout.config.ranks) == 2 and isinstance(layout.config.first, int) for layout in pair)
        keys.append([] if plain else None)
        for holder, wanter in zip(*members(*pair), strict=True) if plain else ():
            lines = [Line(a, b, holder.cuts(a), wanter.cuts(b)) for a, b in zip(holder.axes, wanter.axes, strict=True)]
            keys[-1].append([line.key for line in lines])  # type: ignore[union-attr]
            every.update(zip(keys[-1][-1], lines, strict=True))  # type: ignore[index]
    kinds: dict[Any, list[Any]] = {}
    for key, line in every.items():
        kinds.setdefault(line.kind, []).append(key)
    found: dict[Any, Along] = {}
    for some in kinds.values():
        found.update(zip(some, _chunks([every[key] for key in some], ranks), strict=True))
    return [None if each is None else [[found[key] for key in line] for line in each] for each in keys]


def _chunks(lines: Sequence[Line], ranks: int) -> Iterator[Along]:
    rank = standing_for_all(ranks, 3)
    ways = max(line.x.ranks.size for line in lines) * max(line.y.ranks.size for line in lines)
    step = max(1, MOST // (len(rank) * ways))
    for begin in range(0, len(lines), step):
        yield from _along(lines[begin: begin + step], rank)


def _along(lines: Sequence[Line], rank: Any) -> Iterator[Along]:
    """The comparisons of axes of one kind, as a stack; fewer ways than the most leave room behind."""
    x, y = _stacked([line.x for line in lines]), _stacked([line.y for line in lines])
    found = along(stack_axes([line.a for line in lines]), stack_axes([line.b for line in lines]), x, y, rank)
    for i, line in enumerate(lines):
        rows, columns = (slice(max((c.ranks.size for c in (line.x, line.y) if c.axis == axis), default=1)) for axis in CASES)
        sizes = (_own(found.sizes[0], i, line.x), _own(found.sizes[1], i, line.y))
        yield Along(found.overlap[:, i, rows, columns], sizes, (found.touched[0][i, rows, columns], found.touched[1][i, rows, columns]))


def _own(values: Any, i: int, cuts: Cuts) -> Any:
    """What follows from one of two layouts."""
    n = cuts.ranks.size
    return values[:, i, :n] if cuts.axis == -2 else values[:, i, :, :n]


def _stacked(cuts: Sequence[Cuts]) -> Cuts:
    columns = np.ones((3, len(cuts), max(each.ranks.size for each in cuts)), np.int64)
    for i, each in enumerate(cuts):
        columns[:, i, : each.ranks.size] = each.columns
    stride, size, ranks = columns.reshape(3, len(cuts), *CASES[cuts[0].axis])
    return Cuts(Digit(stride, size), 0, ranks)
