"""What halos move along the cut axes of an image, at the parts through which most goes: whole
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.plan.axis import Axis, each_part
from hpcpar.plan.config import Digit


def sides_of(own: Axis, need: Axis, parts: Any) -> Any:
    """What the busiest part of each axis receives, and what the busiest sends: (kept, from below,
    from above, messages below, above).

    Items along this axis: `kept` of the needed interval the part holds itself, the others come from
    parts below and above. Third, of the part through whose buffers most goes: (kept, received,
    sent, 0, 0).

    Parameters
    ----------
    own, need, parts : [axes]

    Returns
    -------
    ndarray
        [axes, 3, 5].
    """
    (o0, o1, begins), (w0, w1, _) = each_part(own, parts), each_part(need, parts)
    whose, place = np.repeat(np.arange(len(parts)), parts), np.arange(len(o0))
    kept = np.maximum(0, np.minimum(o1, w1) - np.maximum(o0, w0))
    # of all axes end to end, how many parts want each index; the sum of that up to each
    ends = np.cumsum(own.extent + 1)
    begin = (ends - own.extent - 1)[whose]
    wanted = np.cumsum(np.bincount(begin + w0, minlength=ends[-1]) - np.bincount(begin + w1, minlength=ends[-1]))
    before = np.concatenate(([0], np.cumsum(wanted)))
    received, sent = w1 - w0 - kept, before[begin + o1] - before[begin + o0] - kept

    def most(moved: Any) -> Any:
        """The first part of each axis with most of it."""
        parts_with = (moved == np.maximum.reduceat(moved, begins)[whose]).nonzero()[0]
        return parts_with[np.searchsorted(parts_with, begins)]

    out = np.zeros((len(parts), 3, 5), np.int64)
    for way, (moved, (mine0, mine1), (theirs0, theirs1)) in enumerate(((received, (w0, w1), (o0, o1)), (sent, (o0, o1), (w0, w1)))):
        at = most(moved)
        common = np.maximum(0, np.minimum(mine1[at][whose], theirs1) - np.maximum(mine0[at][whose], theirs0))
        below, some = place < at[whose], (common > 0).astype(np.int64)
        out[:, way, 0], out[:, way, 1] = kept[at], np.add.reduceat(common * below, begins)
        out[:, way, 2], out[:, way, 3] = moved[at] - out[:, way, 1], np.add.reduceat(some * below, begins)
        out[:, way, 4] = np.add.reduceat(some, begins) - out[:, way, 3] - (out[:, way, 0] > 0)
    at = most(received + sent)
    out[:, 2, 0], out[:, 2, 1], out[:, 2, 2] = kept[at], received[at], sent[at]
    return out


@dataclass(frozen=True)
class Halo:
    """What a halo exchange, and its adjoint, moves.

    Attributes
    ----------
    rest : int
        Items across the axes that no window is cut along.
    found : list of ndarray
        For each of the others what `sides_of` says: [..., receiving, giving or both, 5].
    digits : list of Digit
        The coordinates that cut them.
    """

    rest: Any
    found: list[Any]
    digits: list[Digit]
