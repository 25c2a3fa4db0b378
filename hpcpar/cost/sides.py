"""What halos move along the cut axes of an image, at the parts through which most goes: whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.plan.axis import Axis, each_part
from hpcpar.plan.config import Digit

#: Pairs of parts that are compared at once.
MOST = 1 << 18


def sides_of(own: Axis, need: Axis, parts: Any) -> Any:
    """What the busiest part of each axis receives, and what the busiest sends: (kept, from below, from above, messages below, above).

    Items along this axis: `kept` of the needed interval the part holds itself, the others come from parts below and above. Third, of the
    part through whose buffers most goes: (kept, received, sent, 0, 0).

    Parameters
    ----------
    own, need, parts : [axes]

    Returns
    -------
    ndarray
        [axes, 3, 5].
    """
    (o0, o1, begins), (w0, w1, _) = each_part(own, parts), each_part(need, parts)
    out = np.empty((len(parts), 3, 5), np.int64)
    for n in set(parts.tolist()):
        here, step = (parts == n).nonzero()[0], max(1, MOST // n**2)
        for i in range(0, len(here), step):
            some = here[i: i + step]
            places = begins[some, None] + np.arange(n)
            out[some] = _busiest((o0[places], o1[places]), (w0[places], w1[places]))
    return out


def _busiest(own: tuple[Any, Any], need: tuple[Any, Any]) -> Any:
    """The same of axes that are cut into as many parts, from starts and stops of these, [axes, parts] each."""
    (o0, o1), (w0, w1), (axes, parts) = own, need, own[0].shape
    out, every = np.zeros((axes, 3, 5), np.int64), np.arange(axes)
    # [axes, wanting part, holding part]
    common = np.maximum(0, np.minimum(w1[:, :, None], o1[:, None]) - np.maximum(w0[:, :, None], o0[:, None]))
    kept = np.diagonal(common, axis1=1, axis2=2)
    through = np.stack([common.sum(axis=2 - way) - kept for way in (0, 1)])
    for way, moved in enumerate(through):
        at = moved.argmax(axis=1)
        line = common[every, at] if way == 0 else common[every, :, at]
        below = np.arange(parts) < at[:, None]
        out[:, way, 0] = kept[every, at]
        out[:, way, 1] = (line * below).sum(axis=1)
        out[:, way, 2] = moved[every, at] - out[:, way, 1]
        out[:, way, 3] = ((line > 0) & below).sum(axis=1)
        out[:, way, 4] = (line > 0).sum(axis=1) - out[:, way, 3] - (out[:, way, 0] > 0)
    at = through.sum(axis=0).argmax(axis=1)
    out[:, 2, 0], out[:, 2, 1], out[:, 2, 2] = kept[every, at], through[0, every, at], through[1, every, at]
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
