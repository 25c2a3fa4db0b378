"""Check that all ranks have the same schedule, before different ones deadlock."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np

from hpcpar.comm.world import World
from hpcpar.errors import RunError, on_all_ranks
from hpcpar.network.layers.base import shape_text
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Schedule


def agree(world: World, schedule: Schedule) -> None:
    """Compare every communication step with those of all other ranks.

    The messages between two ranks are compared from both ends too. This finds messages that one
    rank sends and the other does not expect, or expects with another size. Where all is well, four
    small collectives run, of at most one number for each pair of ranks.

    Raises
    ------
    RunError
        On every rank. It names the rank that differs from most others, and its first such step.
    """
    steps = schedule.comms
    own = np.array([zlib.crc32(repr(step).encode()) for step in steps], np.int64)
    whole = zlib.crc32(own.tobytes())
    if world.least(whole) != world.most(whole):
        raise on_all_ranks(RunError(_difference(world, steps, own)))
    sent, expected = _messages(world, steps)
    told = np.empty_like(sent)
    world.comm.Alltoall(sent, told)
    wrong = [int(peer) for peer in np.flatnonzero(told != expected)]
    found = next((text for text in world.comm.allgather(_unexpected(world, steps, wrong)) if text),
                 None)
    if found is not None:
        raise on_all_ranks(RunError(found))


def _told(step: Comm | None) -> str:
    """Description of a step in an error message."""
    if step is None:
        return "no further step"
    shape = shape_text(step.source.shape)
    part = f" of micro-batch or FC pass {step.part}" if step.part else ""
    return (f"step {step.index} ({step.label} of {step.tensor} [{shape}]{part}, {step.algorithm}, "
            f"{step.segments} segments, {step.source.config} to {step.destination.config})")


def _difference(world: World, steps: tuple[Comm, ...], own: np.ndarray) -> str:
    """Error message with the first step where ranks differ, and the ranks in the minority."""
    everyone: list[np.ndarray] = world.comm.allgather(own)
    for at in range(max(len(theirs) for theirs in everyone)):
        here = [int(theirs[at]) if at < len(theirs) else -1 for theirs in everyone]
        if len(set(here)) > 1:
            break
    counted = Counter(here).most_common()
    # without a majority, rank 0 counts as usual
    usual = counted[0][0] if len(counted) == 1 or counted[0][1] > counted[1][1] else here[0]
    odd = [rank for rank, digest in enumerate(here) if digest != usual]
    texts: list[str] = world.comm.allgather(_told(steps[at] if at < len(steps) else None))
    who = f"rank {odd[0]} has" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} have"
    same = texts[odd[0]] == texts[here.index(usual)]
    rest = "the same with other boxes or another group" if same else texts[here.index(usual)]
    return (f"the ranks' schedules differ: {who} {texts[odd[0]]} as communication number {at}, "
            f"{world.size - len(odd)} of {world.size} ranks {rest}; "
            "start every rank with the same plan file and the same hpcpar")


def _messages(world: World, steps: tuple[Comm, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Digests of the messages that this rank sends to every peer, and of those it expects."""
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
    """Error message with the first step whose expected messages a peer does not send."""
    for step in steps if wrong else ():
        for peer in wrong:
            mine, theirs = exchange(step, world.rank), exchange(step, peer)
            expected = [m.stop - m.start for r in mine.rounds for m in r.recvs
                        if mine.peers[m.peer] == peer]
            coming = [m.stop - m.start for r in theirs.rounds for m in r.sends
                      if theirs.peers[m.peer] == world.rank]
            if expected != coming:
                return (f"rank {world.rank} expects messages of {expected} items from rank {peer} "
                        f"in {_told(step)}, which sends {coming}; this is a fault of hpcpar: "
                        "please report it with the plan file")
    if not wrong:
        return ""
    return (f"rank {world.rank} and rank {wrong[0]} do not agree on the sizes of their "
            "messages")
