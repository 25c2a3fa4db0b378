"""Measuring what a rank computes from inside a job: the steps of plans, with every rank at work."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World
from hpcpar.cost.choose import schedule_for
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import MeanSquaredError
from hpcpar.plan.boxes import shape
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Schedule
from hpcpar.train.executor import Executor
from hpcpar.train.program import Program
from hpcpar.train.silence import Silence
from hpcpar.train.worksteps import WorkSteps

#: Compute steps are measured for so long (s) at a stretch, but for a whole iteration at least.
BLOCK_S = 0.08


def compute_table(world: World, plan: Plan, backend: Backend, known: Collection[str]) -> dict[str, float]:
    """Seconds of every compute step of a plan on this job's ranks, by the key of its work; those in `known` are not measured again."""
    blocks = compute_blocks(world, plan, backend, known, 5)
    return {key: float(np.median(seconds)) for key, seconds in blocks.items()}


def compute_blocks(world: World, plan: Plan, backend: Backend, known: Collection[str], blocks: int) -> dict[str, NDArray[np.float64]]:
    """Seconds [blocks] of every piece of work of a plan, where some are not in `known`; of a table that has them all, none.

    Whole iterations without messages, so that caches are as cold as there, and all ranks at work for the whole of a block. The mean
    over a block (with more ranks than cores a step that is interrupted counts), the slowest rank's.
    """
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    work = WorkSteps(network, plan, schedule)
    if all(key in known for key in work.keys):
        return {}
    iterate, program = _silent(world, network, plan, schedule, backend)
    clock = time.perf_counter
    iterate()
    world.barrier()
    begin = clock()
    iterate()
    block_s = max(BLOCK_S, world.most(clock() - begin))
    means = np.empty((blocks, len(work.keys)))
    for i in range(blocks):
        world.barrier()
        total, count, begin = np.zeros(len(schedule.steps)), 0, clock()
        while clock() - begin < block_s:
            iterate()
            total, count = total + program.seconds, count + 1
        means[i] = work.seconds(total / count, world.rank)
    slowest = world.most_of_each(means)
    return {key: slowest[:, k] for k, key in enumerate(work.keys) if key not in known}


def _silent(
    world: World, network: Network, plan: Plan, schedule: Schedule, backend: Backend
) -> tuple[Callable[[], None], Program]:
    """An iteration of training without messages, on random data; its weights stay as they are."""
    executor = Executor(network, plan, schedule, Silence(world, backend), backend, 0)
    assert executor.training is not None
    rng = np.random.default_rng(world.rank)
    images = rng.standard_normal((len(executor.image_rows), *shape(executor.image_box))).astype(plan.dtype)
    regression = isinstance(network.layers[-1], MeanSquaredError)
    count = int(plan.batch)
    truth = rng.standard_normal((count, network.classes)).astype(plan.dtype) if regression else rng.integers(0, network.classes, count)

    def iterate() -> None:
        executor.iterate(images, truth, 0, 0.0, 0.9, 0.0)

    return iterate, executor.training
