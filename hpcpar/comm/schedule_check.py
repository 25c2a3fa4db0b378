"""Whether all ranks have the same schedule: asked before the first message, because two that differ
would wait for each other for ever.
"""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np

from hpcpar.comm.world import World
from hpcpar.errors import RunError, on_all_ranks
from hpcpar.plan.layout import Layout
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Schedule


def agree(world: World, schedule: Schedule) -> None:
    """Compare every communication step with those of all other ranks.

    Two small collectives where all is well: of one number, and of two for each rank. What travels
    between two ranks is compared from both ends too, so that a message that one sends and the other
    does not expect, or expects in another size, is found.

    Raises
    ------
    RunError
        On every rank alike: the rank that differs from most others, and its first step that does.
    """
    steps = schedule.comms
    own = np.array([zlib.crc32(_everything(step).encode()) for step in steps], np.int64)
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


def _layout(layout: Layout) -> str:
    return f"{layout.config.key} {[(a.name, a.extent, a.out_extent, a.granule, str(a.relation)) for a in layout.axes]} {layout.summed}"


def _everything(step: Comm) -> str:
    """What must be alike on all ranks."""
    group = None if step.group is None else (step.group.first,
                                             [(d.stride, d.size) for d in step.group.digits])
    return (f"{step.index} {step.label} {step.tensor} {step.part} {step.root} {step.algorithm} {step.segments} {step.item_bytes} "
            f"{step.reduce} {step.needed_by} {step.covers} {group} {_layout(step.holder)} {_layout(step.wanter)}")


def _told(step: Comm | None) -> str:
    """A step for people."""
    if step is None:
        return "no further step"
    shape = "x".join(str(n) for n in step.holder.shape)
    part = f" of micro-batch or turn {step.part}" if step.part else ""
    return (f"step {step.index} ({step.label} of {step.tensor} [{shape}]{part}, {step.algorithm}, {step.segments} segments, "
            f"{step.holder.config} to {step.wanter.config})")


def _difference(world: World, steps: tuple[Comm, ...], own: np.ndarray) -> str:
    """The first place where ranks differ, and who is alone there."""
    everyone: list[np.ndarray] = world.comm.allgather(own)
    for at in range(max(len(theirs) for theirs in everyone)):
        here = [int(theirs[at]) if at < len(theirs) else -1 for theirs in everyone]
        if len(set(here)) > 1:
            break
    counted = Counter(here).most_common()
    # of two equal halves, that of rank 0
    usual = counted[0][0] if len(counted) == 1 or counted[0][1] > counted[1][1] else here[0]
    odd = [rank for rank, digest in enumerate(here) if digest != usual]
    texts: list[str] = world.comm.allgather(_told(steps[at] if at < len(steps) else None))
    who = f"rank {odd[0]} has" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} have"
    same = texts[odd[0]] == texts[here.index(usual)]
    rest = "the same with other boxes or another group" if same else texts[here.index(usual)]
    return (f"the ranks' schedules differ: {who} {texts[odd[0]]} as communication number {at}, {world.size - len(odd)} of "
            f"{world.size} ranks {rest}; start every rank with the same plan file and the same hpcpar")


def _messages(world: World, steps: tuple[Comm, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For every peer a digest of what this rank sends to it in each step, and of what it expects
    from it.
    """
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
    """Names the first step in which this rank expects from a peer what that one, by its boxes, does
    not send.
    """
    for step in steps if wrong else ():
        for peer in wrong:
            mine, theirs = exchange(step, world.rank), exchange(step, peer)
            expected = [m.stop - m.start for r in mine.rounds for m in r.recvs
                        if mine.peers[m.peer] == peer]
            coming = [m.stop - m.start for r in theirs.rounds for m in r.sends
                      if theirs.peers[m.peer] == world.rank]
            if expected != coming:
                return (f"rank {world.rank} expects messages of {expected} items from rank {peer} in {_told(step)}, "
                        f"which sends {coming}; this is a fault of hpcpar: please report it with the plan file")
    return f"rank {world.rank} and rank {wrong[0]} do not agree on the sizes of their messages" if wrong else ""
