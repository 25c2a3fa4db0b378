"""Measuring what a rank computes from inside a job: the steps of plans, with every rank at work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

import numpy as np

from hpcpar.comm.crowd import crowded
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
from hpcpar.train.samples import Samples
from hpcpar.train.silence import Silence
from hpcpar.train.worksteps import WorkSteps

#: A plan is visited for about so long (s), for so many iterations at least.
VISIT_S, FEWEST = 0.25, 1


def compute_samples(world: World, plan: Plan, backend: Backend, known: Collection[str]) -> Samples | None:
    """Every piece of work of a plan that is not in `known`; None where there is none.

    Whole iterations without messages, so that caches are as cold as there, and all ranks at work; every step with its share of what a rank
    does between them. In a run ranks wait for the slowest at almost every layer, and another is the slowest each time: what counts is the
    slowest rank of every iteration. With more ranks than cores those who are done leave their cores to others: there it is the processor's
    time that counts (`hpcpar.machine.model.Device.at_once`), of all ranks that have the work.
    """
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    work = WorkSteps(network, plan, schedule)
    new = [i for i, key in enumerate(work.keys) if key not in known]
    if not new:
        return None
    iterate, program = _silent(world, network, plan, schedule, backend)
    crowd = crowded(world, backend)
    if crowd.ranks:
        program.clock = time.process_time
    clock = time.perf_counter
    iterate()
    world.barrier()
    begin = clock()
    iterate()
    steps_s = np.empty((max(FEWEST, math.ceil(VISIT_S / world.most(clock() - begin))), len(schedule.steps)))
    world.barrier()
    begin, used = clock(), time.process_time()
    computing = list(program.actions)
    for row in steps_s:
        started = program.clock()
        iterate()
        row[:] = program.seconds
        # what lies between the steps belongs to them
        row[computing] += (program.clock() - started - row.sum()) / max(1, len(computing))
    share = (time.process_time() - used) / (clock() - begin)
    mine = work.seconds(steps_s, world.rank)
    seconds = world.mean_of_each(mine, mine > 0) if crowd.ranks else world.most_of_each(mine)
    works = list(work.works.values())
    # whoever has less to do leaves its core to others before they end: together no more than there are
    cores = min(crowd.at_once, crowd.ranks * float(np.mean(world.comm.allgather(share))))
    return Samples([works[i] for i in new], seconds[:, new], cores)


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
