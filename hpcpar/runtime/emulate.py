"""Emulated compute: compute steps sleep for their predicted time; everything else is real.

Sleeping ranks leave their cores to others, so a few cores can emulate many ranks.
"""

from __future__ import annotations

import time
from functools import partial

from hpcpar.kernels.interface import Tick
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Compute
from hpcpar.simulation.simulate import Simulator

#: Longest sleep between two calls of `tick` (s), like a block of a kernel.
_TICK_S = 1e-3


class _Sleep:
    """Computes by sleeping. If a sleep lasts too long, the next sleeps are shorter."""

    def __init__(self, tick: Tick) -> None:
        self._tick, self._late_s = tick, 0.0

    def compute(self, seconds: float) -> None:
        end = time.perf_counter() + seconds - self._late_s
        while (left_s := end - time.perf_counter()) > 0:
            self._tick()
            time.sleep(min(left_s, _TICK_S))
        self._late_s = -left_s


def emulate(executor: Executor, simulator: Simulator) -> None:
    """Turn every compute step of this rank's programs into a sleep of its simulated time."""
    seconds = {}
    for step in simulator.steps:
        if isinstance(step, Compute):
            key = (step.layer, step.op, step.part)
            seconds[key] = float(simulator.compute_s(step)[executor.rank])
    sleep = _Sleep(executor.communicator.progress)

    def bind(program: Program) -> None:
        for i in program.actions:
            step = program.schedule.steps[i]
            assert isinstance(step, Compute)
            program.actions[i] = partial(sleep.compute, seconds[step.layer, step.op, step.part])
        program.clears, program.before, program.joint = {}, {}, {}

    for program in (executor.training, executor.evaluation):
        if program is not None:
            bind(program)
