"""Ranks whose schedules differ find out before the first message, all of them, instead of waiting
for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import RunError
from hpcpar.kernels import backend
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Comm, Schedule, Step

P = world().size
SPEC = NetworkSpec("lenet5", (1, 12, 12), 10)
NETWORK = network("lenet5", (1, 12, 12), 10)
#: The place, among the communication steps, of the one that is changed.
PLACE = 2


def schedule(batch: int = 8, algorithm: str = "ring") -> Schedule:
    plan = make_plan(SPEC, "filter", P, batch, overlap="none")
    return lower(NETWORK, plan, lambda step: (algorithm, 1))


def changed(change: Callable[[list[Step], int], None]) -> Schedule:
    """The schedule with something else at a communication step."""
    steps = list(schedule().steps)
    change(steps, schedule().comms[PLACE].index)
    return Schedule(P, tuple(steps))


def swap(steps: list[Step], at: int) -> None:
    other = schedule().comms[PLACE + 1].index
    steps[at], steps[other] = replace(steps[other], index=at), replace(steps[at], index=other)


def leave_out(steps: list[Step], at: int) -> None:
    del steps[at]


def another_size(steps: list[Step], at: int) -> None:
    step, other = steps[at], schedule(batch=9).comms[PLACE]
    assert isinstance(step, Comm)
    steps[at] = replace(step, source=other.source, destination=other.destination)


def another_algorithm(steps: list[Step], at: int) -> None:
    step = steps[at]
    assert isinstance(step, Comm)
    steps[at] = replace(step, algorithm="mpi")


@pytest.mark.skipif(P == 1, reason="a single rank agrees with itself")
@pytest.mark.parametrize("change", [swap, leave_out, another_size, another_algorithm])
@pytest.mark.parametrize("odd", sorted({0, P - 1}))
def test_every_rank_refuses_different_schedules(change: Callable[[list[Step], int], None], odd: int,
                                                communicator: Communicator) -> None:
    here = communicator.world.rank
    ours = changed(change) if here == odd else schedule()
    plan = make_plan(SPEC, "filter", P, 8, overlap="none")
    with pytest.raises(RunError, match="schedules differ") as caught:
        Executor(NETWORK, plan, ours, communicator, backend("cpu"), 0)
    assert caught.value.everywhere
    text, usual = str(caught.value), schedule().comms[PLACE]
    everyone = communicator.world.comm.allgather(text)
    assert len(set(everyone)) == 1 and "\n" not in text
    if P > 2:  # of two ranks none is the odd one
        assert f"rank {odd} has" in text
    assert f"step {usual.index} ({usual.label}" in text


def test_equal_schedules_agree(communicator: Communicator) -> None:
    for algorithm in ("ring", "mpi"):
        communicator.agree(schedule(algorithm=algorithm))
