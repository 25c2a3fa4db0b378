"""Measuring what a rank computes from inside a job: the steps of plans, with every rank at work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from hpcpar.calibrate.null_communicator import Silence
from hpcpar.calibrate.samples import Samples
from hpcpar.calibrate.work_index import WorkSteps
from hpcpar.comm.crowd import crowded, on_each_core
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data.loader import normalise
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import MeanSquaredError
from hpcpar.plan.boxes import shape
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.runtime.stamps import Stamps
from hpcpar.schedule.steps import Schedule

#: A plan is visited for about so long (s), for so many iterations at least.
VISIT_S, FEWEST = 0.25, 1


def compute_samples(world: World, plan: Plan, backend: Backend,
                    known: Collection[str]) -> Samples | None:
    """Every piece of work of a plan that is not in `known`; None where there is none.

    Whole iterations without messages, so that caches are as cold as there, and all ranks at work;
    every step with its share of what a rank does between them. In a run ranks wait for the slowest
    at almost every layer, and another is the slowest each time: what counts is the slowest rank of
    every iteration. With more ranks than cores it is the processor's time that counts
    (`hpcpar.machine.model.Device.at_once`), of the core that its ranks take longest on together.
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
    steps_s = np.empty((max(FEWEST, math.ceil(VISIT_S / world.most(clock() - begin))),
                        len(schedule.steps)))
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
    seconds = _slowest_core(world, mine, crowd.at_once) if crowd.ranks else world.most_of_each(mine)
    works = list(work.works.values())
    # whoever has less to do leaves its core to others before they end: together no more than there
    # are
    cores = min(crowd.at_once, crowd.ranks * float(np.mean(world.comm.allgather(share))))
    return Samples([works[i] for i in new], seconds[:, new], cores)


def _slowest_core(world: World, mine: NDArray[np.float64], at_once: float) -> NDArray[np.float64]:
    """[iterations, works] for every work, of the core whose ranks take longest together, a rank's
    part as a prediction counts it.

    Predictions multiply it with how many times more ranks have the work than compute at once. Every
    second iteration tells which core that is in the others: where cores take as long as each other,
    the one that happens to take longest is no measure.
    """
    ranks = np.sum(world.comm.allgather((mine > 0).any(axis=0)), axis=0)
    cores = on_each_core(world, mine) / np.maximum(1.0, ranks / at_once)
    out = np.empty(cores.shape[1:])
    for rows, others in ((slice(0, None, 2), slice(1, None, 2)),
                         (slice(1, None, 2), slice(0, None, 2))):
        told = cores[:, others]
        longest = np.median(told if told.shape[1] else cores[:, rows], axis=1).argmax(axis=0)
        out[rows] = np.take_along_axis(cores[:, rows], longest[None, None], axis=0)[0]
    return out


def _silent(
    world: World, network: Network, plan: Plan, schedule: Schedule, backend: Backend
) -> tuple[Callable[[], None], Program]:
    """An iteration of training without messages, on random data, with what a run's loop does
    between two; its weights stay as they are.
    """
    executor = Executor(network, plan, schedule, Silence(world, backend), backend, 0)
    program = executor.training
    assert program is not None
    rng = np.random.default_rng(world.rank)
    images = np.empty((len(executor.image_rows), *shape(executor.image_box)), plan.dtype)
    raw = rng.integers(0, 256, images.shape, np.uint8)
    order = rng.permutation(len(raw))
    mean, scale = (np.full((images.shape[1], *(1 for _ in images.shape[2:])), value, plan.dtype)
                   for value in (127.5, 1 / 64))
    stamps = Stamps(world, len(schedule.steps))
    regression = isinstance(network.layers[-1], MeanSquaredError)
    count = int(plan.batch)
    truth = rng.standard_normal((count,
                                 network.classes)).astype(
        plan.dtype) if regression else rng.integers(0, network.classes, count)

    def iterate() -> None:
        normalise(raw[order], mean, scale, images)
        begin = time.perf_counter()
        executor.iterate(images, truth, 0, 0.0, 0.9, 0.0)
        stamps.add(program, begin)

    return iterate, program
