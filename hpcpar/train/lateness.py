"""How late ranks are for a message where they take turns on cores, after computing for more or less long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Backend
from hpcpar.plan.config import Config
from hpcpar.schedule.rounds import ALGORITHMS
from hpcpar.schedule.steps import Kind
from hpcpar.train.gauge import Gauge
from hpcpar.train.links import Steps

#: A sample lasts some of a scheduler's slices.
TURNS_S = 0.05
#: Products between two messages, each of so many rows and columns, beside a copy of as many numbers as it reads.
PRODUCTS = (1, 4, 16, 64, 256)
_SIZE = 128
#: A message that takes little by itself.
_BYTES = 64


class Lateness:
    """Gauges of computing, of messages, and of both in turns.

    Whoever has computed waits until the operating system has given the others their turn: both in turns take longer than each alone, the
    more rounds a message has, the longer. Those of plans lie between the two that are measured, of as many rounds as others and of as few
    as any.
    """

    def __init__(self, steps: Steps, backend: Backend) -> None:
        world = steps.communicator.world
        config, n_bytes = Config(n=world.size), _BYTES * world.size
        messages = [steps.action(Kind.ALLGATHER, algorithm, config, "n", n_bytes) for algorithm in ALGORITHMS[Kind.ALLGATHER]]
        a, b, c = (backend.zeros((_SIZE, _SIZE), "float32") for _ in range(3))
        x, y = (backend.zeros((2 * _SIZE * _SIZE,), "float32") for _ in range(2))

        def compute(count: int) -> Callable[[], None]:
            def act() -> None:
                for _ in range(count):
                    backend.gemm(a, b, c)
                    backend.unpack(x, y)

            return act

        def both(computing: Callable[[], None], message: Callable[[], None]) -> Callable[[], None]:
            def act() -> None:
                computing()
                message()

            return act

        def gauge(action: Callable[[], None]) -> Gauge:
            return Gauge(world, action, lasts_s=TURNS_S)

        self._messages = [gauge(message) for message in messages]
        self._computing = [gauge(compute(n)) for n in PRODUCTS]
        self._both = [[gauge(both(compute(n), message)) for message in messages] for n in PRODUCTS]

    @property
    def gauges(self) -> list[Gauge]:
        return [*self._messages, *self._computing, *(g for each in self._both for g in each)]

    @property
    def late(self) -> tuple[tuple[float, float], ...]:
        """`hpcpar.machine.model.Machine.late`: medians over the rounds."""
        out: list[tuple[float, float]] = []
        for computing, both in zip(self._computing, self._both, strict=True):
            alone = _samples(computing)
            longer = [np.median(_samples(g) - alone - _samples(message)) for g, message in zip(both, self._messages, strict=True)]
            # on a machine that is disturbed more computing may seem to take less
            if not out or computing.seconds > out[-1][0]:
                out.append((computing.seconds, max(0.0, float(np.mean(longer)))))
        return tuple(out)


def _samples(gauge: Gauge) -> NDArray[np.float64]:
    return np.array(gauge.samples or [gauge.once_s])
