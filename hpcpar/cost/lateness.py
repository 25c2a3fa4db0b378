"""Where ranks take turns on cores: how late the others are for a message, beside what a prediction counts anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: From what ranks have computed, how late the last of them is for a message (s): `hpcpar.machine.model.Machine.late_s`.
Late = Callable[[Any], Any]


class Lateness:
    """A walk through the steps of a rank. Messages with nothing computed in between are late once."""

    def __init__(self, late_s: Late) -> None:
        self._late_s = late_s
        self._computed: Any = 0.0  # before what is waited for now
        self._waited: Any = False

    def compute(self, seconds: Any) -> None:
        """The rank computes."""
        some = np.greater(seconds, 0)
        self._computed = np.where(self._waited & some, 0.0, self._computed) + seconds
        self._waited = self._waited & ~some

    def wait(self, happens: Any) -> Any:
        """How long it waits for whoever is late, in cases where that `happens`."""
        late = np.where(happens & ~np.asarray(self._waited), self._late_s(self._computed), 0.0)
        self._waited = self._waited | happens
        return late
