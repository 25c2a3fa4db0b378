"""Times of a plan's compute steps while all ranks of a job work."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection
from functools import partial

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
#: Steps that wait together on a device: their launches fit in its queue.
_QUEUED_STEPS = 64
#: How long the device waits for them, as a multiple of the host's time to submit them.
_QUEUED_TIMES = 1.5


def compute_samples(
    world: World, plan: Plan, backend: Backend, known: Collection[str]
) -> Samples | None:
    """Times of a plan's pieces of work that are not in `known`; None if all are.

    Whole iterations run without messages, so caches are as cold as in a run, and all ranks compute.
    On a CPU, the time between steps is divided evenly among the compute steps. A GPU's times are
    its own: it works on steps that the host has already submitted.
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
    submitted_s = iterate()
    once_s = world.max(time.perf_counter() - begin)
    submit_s = 0.0
    if backend.works_later:
        submit_s = world.max(submitted_s) / len(program.steps.mine)
        _queue(backend, program, submit_s)
    steps_s = np.empty((max(FEWEST, math.ceil(VISIT_S / once_s)), len(schedule.steps)))
    computing = list(program.actions)
    world.barrier()
    for row in steps_s:
        begin = time.perf_counter()
        iterate()
        iteration_s = time.perf_counter() - begin
        row[:] = program.times().seconds
        if not backend.works_later:
            row[computing] += (iteration_s - row.sum()) / max(1, len(computing))
    by_rank = np.array(world.comm.allgather(work.seconds(steps_s, world.rank)))
    seconds = of_all_ranks(by_rank, fullest_node(world, backend.name).shared)
    works = list(work.works.values())
    return Samples([works[i] for i in new], seconds[:, new], submit_s)


def _queue(backend: Backend, program: Program, submit_s: float) -> None:
    """Let the device wait now and then until the host has submitted the next steps."""
    def hold(before: Callable[[], None] | None) -> None:
        if before is not None:
            before()
        backend.synchronize()
        backend.hold(_QUEUED_TIMES * _QUEUED_STEPS * submit_s)

    for step in list(program.actions)[::_QUEUED_STEPS]:
        program.before[step] = partial(hold, program.before.get(step))


def silent_iteration(
    world: World, network: Network, plan: Plan, schedule: Schedule, backend: Backend
) -> tuple[Callable[[], float], Program]:
    """A training iteration as in a run, but without messages, on random data, with rate 0. It
    returns the host time to submit it.
    """
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

    def iterate() -> float:
        shuffled = backend.upload(images[order])
        begin = time.perf_counter()
        flight = executor.begin(shuffled, truth, 0, 0.0, 0.9, 0.0)
        submitted_s = time.perf_counter() - begin
        flight.result()
        stamps.add(next(numbers), program.times, begin)
        return submitted_s

    return iterate, program
