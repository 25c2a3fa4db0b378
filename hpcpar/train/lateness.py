"""How late ranks are for a message where they take turns on cores, after computing for more or less long."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hpcpar.comm.crowd import on_each_core
from hpcpar.comm.world import World
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


class Cycle(Gauge):
    """Computing and a message in turns.

    Attributes
    ----------
    computing_s : list of float
        In every sample, the processor's time that the ranks of the slowest core computed for between two messages, together.
    """

    def __init__(self, world: World, compute: Callable[[], None], message: Callable[[], None]) -> None:
        self.computing_s: list[float] = []
        self._used, self._times = 0.0, 0
        used = time.process_time

        def both() -> None:
            begin = used()
            compute()
            self._used += used() - begin
            self._times += 1
            message()

        super().__init__(world, both, lasts_s=TURNS_S)

    def take(self) -> None:
        """Take a sample."""
        self._used, self._times = 0.0, 0
        super().take()
        self.computing_s.append(float(on_each_core(self._world, np.array(self._used / self._times)).max()))


class Lateness:
    """Gauges of messages, and of messages after computing.

    Whoever has computed waits until the others have had their turn: both in turns take longer than messages alone and what a prediction
    counts for the computing, the processor's time of all ranks on a core. Both are of one sample: that a machine's speed changes is no part
    of it.
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

        self._message = Gauge(world, message, lasts_s=TURNS_S)
        self._cycles = [Cycle(world, compute(n), message) for n in PRODUCTS]

    @property
    def gauges(self) -> list[Gauge]:
        return [self._message, *self._cycles]

    @property
    def late(self) -> tuple[tuple[float, float], ...]:
        """`hpcpar.machine.model.Machine.late`: medians over the rounds, which do not fall where ranks compute for longer."""
        out: list[tuple[float, float]] = []
        late_s = 0.0
        for cycle in self._cycles:
            computing_s = np.array(cycle.computing_s)
            if not len(computing_s):  # before the first round
                return ()
            late_s = max(late_s, float(np.median(np.array(cycle.samples) - computing_s - np.array(self._message.samples))))
            # on a machine that is disturbed more computing may seem to take less
            if not out or np.median(computing_s) > out[-1][0]:
                out.append((float(np.median(computing_s)), late_s))
        return tuple(out)
