"""The geometry of edges between families of configurations: who holds what and how it moves, without any price.

It depends on whole numbers only: shapes, windows and degrees. Searches of one process ask for the same again and again, so that the
latest is kept, up to a number of cases.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcpar.plan.layout import Layout
from hpcpar.plan.stack import stack
from hpcpar.schedule.pattern import Pattern, backward_pattern, forward_pattern, relate

#: Pairs of configurations whose geometry is kept: about 100 bytes each.
MOST_CASES = 600_000
#: What the producer's ranks own, what the consumer's need of it, and what they own of the consumer's output.
Three = tuple[Layout, Layout, Layout]


class Geometry(NamedTuple):
    """Stacked layouts of edges of one structure, and the patterns of their movements."""

    have: Layout
    want: Layout
    made: Layout
    forward: Pattern
    backward: Pattern


_kept: OrderedDict[tuple[int, ...], tuple[Geometry, Sequence[Three], int]] = OrderedDict()


def geometry(edges: Sequence[Three]) -> Geometry:
    """The geometry of edges of one structure."""
    key = tuple(id(layout) for edge in edges for layout in edge)
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][0]
    have, want, made = (stack(layouts) for layouts in zip(*edges, strict=True))
    rel = relate(have, want)
    found = Geometry(have, want, made, forward_pattern(have, want, rel), backward_pattern(have, want, rel))
    if all(layout.config.shared for edge in edges for layout in edge):
        cases = len(edges) * int(np.size(have.config.n)) * int(np.size(want.config.n))
        # the layouts are kept, so that no others get their ids
        _kept[key] = (found, edges, cases)
        total = sum(cases for _, _, cases in _kept.values())
        while total > MOST_CASES:
            total -= _kept.popitem(last=False)[1][2]
    return found
