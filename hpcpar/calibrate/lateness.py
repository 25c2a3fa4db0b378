"""What ranks that take turns on cores need for each other's messages, after computing for more or
less long.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from hpcpar.calibrate.link_probe import CACHE_BYTES, Steps
from hpcpar.calibrate.timer import Gauge
from hpcpar.comm.crowd import on_each_core
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind

#: A sample lasts some of a scheduler's slices.
TURNS_S = 0.05
#: Of so many parts of a sample the middle one counts, as of a run's iterations the middle one does.
PARTS = 5
#: Products between two messages, each of so many rows and columns, beside a copy after which a
#: core's caches hold nothing else.
PRODUCTS = (1, 4, 16, 64)
_SIZE, _ITEM = 128, 4
#: So many messages take turns, as an iteration has many, and copies go through so many times as
#: much memory: what one of them needs was last in use as many messages ago.
MESSAGES = 8
#: What a rank sends to each of the others: so much that a library asks before it sends; and so
#: little that a slow link takes no time, in which lateness would be hidden.
_BYTES = (16 * 1024, 2 * 1024)
#: What a rank hands to one of the other half, and products before it.
_RELAY_BYTES, RELAY_PRODUCTS = 2 * 1024, (0, 1, 4, 16)


class Cycle(Gauge):
    """Computing and messages in turns.

    Parameters
    ----------
    first : callable, optional
        The messages before the computing, of ranks that wait for others to compute first.

    Attributes
    ----------
    computing_s : list of float
        In every sample, the processor's time that the ranks of the slowest core computed for in a
        cycle, together.
    """

    def __init__(
        self, world: World, compute: Callable[[], None], message: Callable[[], None], first: Callable[[], None] | None = None
    ) -> None:
        self.computing_s: list[float] = []
        self._used = self._computed = 0.0
        used = time.process_time

        def all_of_it() -> None:
            if first is not None:
                first()
            begin = used()
            compute()
            self._used += used() - begin
            message()

        super().__init__(world, all_of_it, lasts_s=TURNS_S)
        self._count = max(PARTS, self._count)

    def _sample(self, count: int) -> float:
        self._world.barrier()
        each, parts = max(1, round(count / PARTS)), []
        for _ in range(PARTS):
            begin, used = time.perf_counter(), self._used
            for _ in range(each):
                self._action()
            parts.append(((time.perf_counter() - begin) / each, (self._used - used) / each))
        lasts, self._computed = np.median(parts, axis=0).tolist()
        # whoever gets the core later ends a part later: over all parts no rank takes longer than
        # the others
        return float(np.mean(self._world.comm.allgather(lasts)))

    def take(self) -> None:
        """Take a sample."""
        super().take()
        self.computing_s.append(float(on_each_core(self._world, np.array(self._computed)).max()))

    def beyond_s(self, alone: Gauge | None = None) -> float:
        """How much longer a cycle takes than its computing and, of the same samples, messages
        alone; the median over the rounds.

        That a machine's speed changes from one sample to the next is no part of it.
        """
        rest = np.array(self.samples) - np.array(self.computing_s)
        return float(np.median(rest if alone is None else rest - np.array(alone.samples)))


class Lateness:
    """Gauges of messages, and of messages after computing.

    Whoever has computed waits until the others have had their turn: both in turns take longer than
    messages alone and what a prediction counts for the computing, the processor's time of all ranks
    on a core.
    """

    def __init__(self, steps: Steps, backend: Backend) -> None:
        world = steps.communicator.world
        config = Config(n=world.size)
        a, b, c = (backend.zeros((_SIZE, _SIZE), "float32") for _ in range(3))
        x, y = (backend.zeros((MESSAGES, CACHE_BYTES // _ITEM), "float32") for _ in range(2))
        places = itertools.cycle(range(MESSAGES))

        def compute(count: int) -> None:
            for _ in range(count):
                backend.gemm(a, b, c)
                place = next(places)
                backend.unpack(x[place], y[place])

        self._sets: list[tuple[Gauge, list[Cycle]]] = []
        for n_bytes in _BYTES:
            messages = [steps.action(Kind.ALLGATHER, "ring", config, "n", n_bytes * world.size)
                        for _ in range(MESSAGES)]
            cycles = [Cycle(world, partial(compute, n), _in_turn(messages)) for n in PRODUCTS]
            self._sets.append((Gauge(world, messages[0], lasts_s=TURNS_S), cycles))
        firsts, thens = zip(*(steps.relay(_RELAY_BYTES) for _ in range(MESSAGES)), strict=True)
        self._relays = [Cycle(world, partial(compute, n), _in_turn(thens), _in_turn(firsts))
                        for n in RELAY_PRODUCTS]

    @property
    def gauges(self) -> list[Gauge]:
        return [*(g for alone, cycles in self._sets for g in (alone, *cycles)), *self._relays]

    @property
    def late(self) -> tuple[tuple[float, float], ...]:
        """`hpcpar.machine.model.Machine.late`: of the message that shows most of it, not falling
        where ranks compute for longer.
        """
        out: list[tuple[float, float]] = []
        late_s = 0.0
        for same in zip(*(cycles for _, cycles in self._sets), strict=True):
            if not same[0].samples:  # before the first round
                return ()
            found = [(cycle.beyond_s(alone), float(np.median(cycle.computing_s)))
                     for (alone, _), cycle in zip(self._sets, same, strict=True)]
            most_s, computing_s = max(found)
            late_s = max(late_s, most_s)
            # on a machine that is disturbed more computing may seem to take less
            if not out or computing_s > out[-1][0]:
                out.append((computing_s, late_s))
        return tuple(out)

    @property
    def relay(self) -> tuple[tuple[float, float], ...]:
        """`hpcpar.machine.model.Machine.relay`: of a message there, and of one back."""
        out: list[tuple[float, float]] = []
        for count, cycle in zip(RELAY_PRODUCTS, self._relays, strict=True):
            if not cycle.samples:
                return ()
            computing_s = float(np.median(cycle.computing_s)) / 2 if count else 0.0
            if not out or computing_s > out[-1][0]:
                out.append((computing_s, max(0.0, cycle.beyond_s() / 2)))
        return tuple(out)


def _in_turn(actions: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """One after the other, again and again."""
    following = itertools.cycle(actions)
    return lambda: next(following)()
