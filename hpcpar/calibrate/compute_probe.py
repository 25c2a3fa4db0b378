"""Times of a plan's compute steps while all ranks of a job work."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection

import numpy as np

from hpcpar.calibrate.null_communicator import NullCommunicator
from hpcpar.calibrate.samples import Samples, of_all_ranks
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.kernels.interface import Backend
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import shape
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.runtime.stamps import Stamps
from hpcpar.schedule.steps import Schedule

#: Length of a visit of a plan (s), and its smallest number of iterations.
VISIT_S, FEWEST = 0.25, 1


def compute_samples(
    world: World, plan: Plan, backend: Backend, known: Collection[str]
) -> Samples | None:
    """Times of a plan's pieces of work that are not in `known`; None if all are.

    Whole iterations run without messages, so caches are as cold as in a run, and all ranks compute.
    The time between steps is divided evenly among the compute steps.
    """
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    work = WorkIndex(network, plan, schedule)
    new = [i for i, key in enumerate(work.keys) if key not in known]
    if not new:
        return None
    iterate, program = silent_iteration(world, network, plan, schedule, backend)
    iterate()
    world.barrier()
    begin = time.perf_counter()
    iterate()
    once_s = world.max(time.perf_counter() - begin)
    steps_s = np.empty((max(FEWEST, math.ceil(VISIT_S / once_s)), len(schedule.steps)))
    computing = list(program.actions)
    world.barrier()
    for row in steps_s:
        begin = time.perf_counter()
        iterate()
        iteration_s = time.perf_counter() - begin
        row[:] = program.times().seconds
        row[computing] += (iteration_s - row.sum()) / max(1, len(computing))
    by_rank = np.array(world.comm.allgather(work.seconds(steps_s, world.rank)))
    seconds = of_all_ranks(by_rank, fullest_node(world, backend.name).shared)
    works = list(work.works.values())
    return Samples([works[i] for i in new], seconds[:, new])


def silent_iteration(
    world: World, network: Network, plan: Plan, schedule: Schedule, backend: Backend
) -> tuple[Callable[[], None], Program]:
    """A training iteration as in a run, but without messages, on random data, with rate 0."""
    executor = Executor(network, plan, schedule, NullCommunicator(world, backend), backend, 0)
    program = executor.training
    assert program is not None
    rng = np.random.default_rng(world.rank)
    image_shape = shape(executor.image_box)
    images = rng.integers(0, 256, (len(executor.image_rows), *image_shape), np.uint8)
    per_channel = (image_shape[0], *[1] * (len(image_shape) - 1))
    executor.normalize_by(np.full(per_channel, 127.5, plan.dtype),
                          np.full(per_channel, 1 / 64, plan.dtype))
    order = rng.permutation(len(images))
    stamps, numbers = Stamps(world, len(schedule.steps)), itertools.count()
    truth_shape = (plan.batch, *shape(executor.truth_box))
    truth = rng.integers(0, network.classes, truth_shape)
    if network.loss.takes_targets:
        truth = rng.standard_normal(truth_shape).astype(plan.dtype)

    def iterate() -> None:
        shuffled = backend.upload(images[order])
        begin = time.perf_counter()
        executor.iterate(shuffled, truth, 0, 0.0, 0.9, 0.0)
        stamps.add(next(numbers), program.times, begin)

    return iterate, program
