"""Check that all ranks have the same schedule, because different schedules deadlock."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np

from hpcpar.comm.world import World
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.network.layers.base import shape_text
from hpcpar.plan.precision import TYPE_BYTES
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Schedule


def agree(world: World, schedule: Schedule) -> None:
    """Compare the communication steps of all ranks, and both ends of every message.

    The comparison of both ends finds messages that only one end expects, or whose ends expect
    different sizes. A correct schedule costs four small collectives, with at most one number per
    pair of ranks.

    Raises
    ------
    RunError
        On every rank. It names the ranks in the minority and the first step that differs.
    """
    steps = schedule.comms
    digests = np.array([zlib.crc32(repr(step).encode()) for step in steps], np.int64)
    whole = zlib.crc32(digests.tobytes())
    if world.min(whole) != world.max(whole):
        raise on_all_ranks(RunError(_difference(world, steps, digests)))
    sent, expected = _messages(world, steps)
    incoming = np.empty_like(sent)
    world.comm.Alltoall(sent, incoming)
    wrong = [int(peer) for peer in np.flatnonzero(incoming != expected)]
    error = next((text for text in world.comm.allgather(_unexpected(world, steps, wrong)) if text),
                 None)
    if error is not None:
        raise on_all_ranks(RunError(error))


def _described(step: Comm | None) -> str:
    """Description of a step in an error message."""
    if step is None:
        return "no further step"
    shape = shape_text(step.source.shape)
    part = f" of micro-batch or FC pass {step.part}" if step.part else ""
    return (f"step {step.index} ({step.label} of {step.tensor} [{shape}]{part}, {step.algorithm}, "
            f"{step.segments} segments, {step.source.config} to {step.destination.config})")


def _difference(world: World, steps: tuple[Comm, ...], digests: np.ndarray) -> str:
    """Error message with the first step where ranks differ, and the ranks in the minority."""
    everyone: list[np.ndarray] = world.comm.allgather(digests)
    for at in range(max(len(of_rank) for of_rank in everyone)):
        of_step = [int(of_rank[at]) if at < len(of_rank) else -1 for of_rank in everyone]
        if len(set(of_step)) > 1:
            break
    counted = Counter(of_step).most_common()
    # without a majority, rank 0's step is the usual one
    usual = counted[0][0] if len(counted) == 1 or counted[0][1] > counted[1][1] else of_step[0]
    odd = [rank for rank, digest in enumerate(of_step) if digest != usual]
    texts: list[str] = world.comm.allgather(_described(steps[at] if at < len(steps) else None))
    who = f"rank {odd[0]} has" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} have"
    same = texts[odd[0]] == texts[of_step.index(usual)]
    rest = "the same with other boxes or another group" if same else texts[of_step.index(usual)]
    return (f"the ranks' schedules differ: {who} {texts[odd[0]]} as communication step number "
            f"{at}, but {world.size - len(odd)} of {world.size} ranks have {rest}; "
            "start every rank with the same plan file and the same version of hpcpar")


def _messages(world: World, steps: tuple[Comm, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Per peer, digests of the messages that this rank sends and of the messages it expects."""
    sent, expected = np.zeros(world.size, np.int64), np.zeros(world.size, np.int64)
    for step in steps:
        ex = exchange(step, world.rank)
        for digests, ends in ((sent, "sends"), (expected, "recvs")):
            for r in ex.rounds:
                for m in getattr(r, ends):
                    peer = ex.peers[m.peer]
                    digests[peer] = zlib.crc32(f"{step.index} {m.stop - m.start}".encode(),
                                               int(digests[peer]))
    return sent, expected


def _unexpected(world: World, steps: tuple[Comm, ...], wrong: list[int]) -> str:
    """Error message with the first step in which a peer sends other messages than expected."""
    for step in steps if wrong else ():
        for peer in wrong:
            receiver, sender = exchange(step, world.rank), exchange(step, peer)
            expected = [m.stop - m.start for r in receiver.rounds for m in r.recvs
                        if receiver.peers[m.peer] == peer]
            sent = [m.stop - m.start for r in sender.rounds for m in r.sends
                    if sender.peers[m.peer] == world.rank]
            if expected != sent:
                return (f"rank {world.rank} expects messages of {expected} items from rank {peer} "
                        f"in {_described(step)}, but rank {peer} sends {sent}; this is a bug in "
                        "hpcpar: please report it with the plan file")
    if not wrong:
        return ""
    return f"rank {world.rank} and rank {wrong[0]} disagree on the sizes of their messages"


def require_direct(schedule: Schedule, has_collectives: bool) -> None:
    """Check that MPI can run a schedule's collectives on device memory.

    Parameters
    ----------
    has_collectives : bool
        False where the library's crash on device memory.

    Raises
    ------
    InputError
        The same on every rank.
    """
    collectives = [s for s in schedule.comms if ALGORITHMS[s.algorithm].library]
    remedy = "plan with other --collectives, or use --transport staged"
    if collectives and not has_collectives:
        raise on_all_ranks(InputError(
            "--collectives mpi cannot run with --transport direct, because Open MPI's nonblocking "
            f"collectives crash on GPU memory; {remedy}"))
    if any(s.reduce and s.item_bytes == TYPE_BYTES["bfloat16"] for s in collectives):
        raise on_all_ranks(InputError(
            "--collectives mpi cannot add bfloat16 numbers in GPU memory (--transport direct); "
            f"{remedy}"))
