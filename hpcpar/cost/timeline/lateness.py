"""Where ranks take turns on cores: how late the others are for a message, beside what a prediction
counts anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import CODES, Kind

#: From what ranks have computed, how late the last of all of them is for a message (s):
#: `hpcpar.machine.model.Machine.late_s`.
Late = Callable[[Any], Any]


def last_of(part: Any, late_s: Any) -> Any:
    """How late the last of a part of the other ranks is, where the last of all is by `late_s`: of
    few not as much, by the root.
    """
    return np.sqrt(part) * late_s


class Lateness:
    """A walk through the steps of a rank.

    Messages with nothing computed in between are late once.
    """

    def __init__(self, late_s: Late) -> None:
        self._late_s = late_s
        self._computed: Any = 0.0  # before what is waited for now
        self._counted: Any = 0.0
        self._waited: Any = False

    def compute(self, seconds: Any) -> None:
        """The rank computes."""
        some = np.greater(seconds, 0)
        new = self._waited & some
        self._computed = np.where(new, 0.0, self._computed) + seconds
        self._counted = np.where(new, 0.0, self._counted)
        self._waited = self._waited & ~some

    def wait(self, happens: Any, partners: Any) -> Any:
        """How long it waits for `partners`, a part of the others, in cases where that `happens`."""
        late = np.maximum(last_of(partners, self._late_s(self._computed)) - self._counted, 0.0)
        late = np.where(happens, late, 0.0)
        self._counted = self._counted + late
        self._waited = self._waited | happens
        return late


def partners(step: Move, ranks: Any) -> Any:
    """The part of all other ranks that a rank waits for in a step: its group, its neighbours in a
    halo, or everybody.
    """
    code, config = step.pattern.code, step.wanter.config
    group = math.prod(d.size for d in step.pattern.digits)
    near = math.prod(np.minimum(degree, 3) for degree in (config.d, config.h, config.w))
    together = np.where(np.equal(code, CODES[Kind.HALO]), near,
                        np.where(np.equal(code, CODES[Kind.REDISTRIBUTE]), ranks, group))
    return (np.minimum(together, ranks) - 1) / np.maximum(ranks - 1, 1)
