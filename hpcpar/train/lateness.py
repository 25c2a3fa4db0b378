"""How late ranks are for a message where they take turns on cores, after computing for more or less long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Backend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind
from hpcpar.train.gauge import Gauge
from hpcpar.train.links import CACHE_BYTES, Steps

#: A sample lasts some of a scheduler's slices.
TURNS_S = 0.05
#: Products between two messages, each of so many rows and columns, beside a copy after which a core's caches hold nothing else.
PRODUCTS = (1, 4, 16, 64)
_SIZE, _ITEM = 128, 4
#: What a rank sends to each of the others: little, but so much that a library asks before it sends.
_BYTES = 16 * 1024


class Lateness:
    """Gauges of computing, of messages, and of both in turns.

    Whoever has computed waits until the operating system has given the others their turn: both in turns take longer than each alone.
    """

    def __init__(self, steps: Steps, backend: Backend) -> None:
        world = steps.communicator.world
        config, n_bytes = Config(n=world.size), _BYTES * world.size
        message = steps.action(Kind.ALLGATHER, "ring", config, "n", n_bytes)
        a, b, c = (backend.zeros((_SIZE, _SIZE), "float32") for _ in range(3))
        x, y = (backend.zeros((CACHE_BYTES // _ITEM,), "float32") for _ in range(2))

        def compute(count: int) -> Callable[[], None]:
            def act() -> None:
                for _ in range(count):
                    backend.gemm(a, b, c)
                    backend.unpack(x, y)

            return act

        def both(computing: Callable[[], None]) -> Callable[[], None]:
            def act() -> None:
                computing()
                message()

            return act

        def gauge(action: Callable[[], None]) -> Gauge:
            return Gauge(world, action, lasts_s=TURNS_S)

        self._message = gauge(message)
        self._computing = [gauge(compute(n)) for n in PRODUCTS]
        self._both = [gauge(both(compute(n))) for n in PRODUCTS]

    @property
    def gauges(self) -> list[Gauge]:
        return [self._message, *self._computing, *self._both]

    @property
    def late(self) -> tuple[tuple[float, float], ...]:
        """`hpcpar.machine.model.Machine.late`: medians over the rounds, which do not fall where ranks compute for longer."""
        out: list[tuple[float, float]] = []
        late_s = 0.0
        for computing, both in zip(self._computing, self._both, strict=True):
            late_s = max(late_s, float(np.median(_samples(both) - _samples(computing) - _samples(self._message))))
            # on a machine that is disturbed more computing may seem to take less
            if not out or computing.seconds > out[-1][0]:
                out.append((computing.seconds, late_s))
        return tuple(out)


def _samples(gauge: Gauge) -> NDArray[np.float64]:
    return np.array(gauge.samples or [gauge.once_s])
