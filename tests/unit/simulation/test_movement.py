"""A movement between ranks that begin at different times, against a walk rank by rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.links import LinkRates
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.boxes import items
from hpcpar.schedule.lower import lower
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Chooser, Comm, Kind
from hpcpar.simulation.movement import Movement
from tests.mpi.networks import random_network
from tests.mpi.plans import random_plan, staged_plan
from tests.unit.schedule.test_sent_bytes import halving, ring, tree

#: Adding and copying take time, small messages have a latency of their own; nobody shares a link.
MACHINE = replace(files.load("p100x4x4"), add_s_per_byte=3e-11, copy_s_per_byte=2e-11, levels=tuple(
    replace(level, links=0.0, small_alpha_s=level.alpha_s / 2, small_bytes=2000)
    for level in files.load("p100x4x4").levels))


def walked(step: Comm, begin_s: np.ndarray, machine: Machine, factor: float) -> np.ndarray:
    """When each rank is done: a rank does its rounds in order, the messages of each one after the
    other; a message starts when both ends have come to its round.
    """
    ranks, size = len(begin_s), step.item_bytes
    every = [exchange(step, rank) for rank in range(ranks)]

    def seconds(a: int, b: int, n: int) -> float:
        n_bytes, level = n * size, machine.level_between(a, b)
        return factor * (level.latency_s(n_bytes) + level.beta_s_per_byte * n_bytes)

    waiting: dict[tuple[int, int], list[int]] = {}  # rounds that receive, by (sender, receiver)
    for rank, ex in enumerate(every):
        for i, r in enumerate(ex.rounds):
            for m in r.recvs:
                waiting.setdefault((ex.peers[m.peer], rank), []).append(i)
    meets: dict[tuple[int, int, int], int] = {}  # (rank, round, number of its send) -> its round
    comes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for rank, ex in enumerate(every):
        for i, r in enumerate(ex.rounds):
            for k, m in enumerate(r.sends):
                peer = ex.peers[m.peer]
                meets[rank, i, k] = waiting[rank, peer].pop(0)
                comes.setdefault((peer, meets[rank, i, k]), []).append((rank, i, k))
    assert not any(waiting.values())

    packs, unpacks = copies(step, ranks, machine, factor)
    started: dict[tuple[int, int], float] = {}
    ended: dict[tuple[int, int], float] = {}
    only_receives = step.between & np.array([items(step.source_box(r)) == 0 for r in range(ranks)])

    def start(rank: int, i: int) -> float | None:
        """When a round starts; None while that is not known."""
        if (rank, i) in started:
            return started[rank, i]
        known = [begin_s[rank] + packs[rank]]
        if only_receives[rank]:
            known = [min(begin_s[a] for a, _, _ in comes[rank, i])]
        before = i - every[rank].in_flight
        if before >= 0:
            if (rank, before) not in ended:
                return None
            known.append(ended[rank, before])
        if i:  # messages go one after the other
            gone = sends_end(rank, i - 1)
            if gone is None:
                return None
            known += gone
        started[rank, i] = max(known)
        return started[rank, i]

    def sends_end(rank: int, i: int) -> list[float] | None:
        """When the messages that a round sends have gone."""
        ex, out, before = every[rank], [], 0.0
        mine = start(rank, i)
        for k, m in enumerate(ex.rounds[i].sends):
            peer = ex.peers[m.peer]
            theirs = start(peer, meets[rank, i, k])
            if mine is None or theirs is None:
                return None
            before += seconds(rank, peer, m.stop - m.start)
            out.append(max(mine, theirs) + before)
        return out if mine is not None else None

    def end(rank: int, i: int) -> float | None:
        ex, r, mine = every[rank], every[rank].rounds[i], start(rank, i)
        gone = sends_end(rank, i)
        if mine is None or gone is None or (i and (rank, i - 1) not in ended):
            return None
        known, all_in = [*gone, mine, ended.get((rank, i - 1), mine)], 0.0
        for a, j, k in comes.get((rank, i), []):
            theirs = sends_end(a, j)
            if theirs is None:
                return None
            known.append(theirs[k])
        for m in r.recvs:
            all_in += seconds(ex.peers[m.peer], rank, m.stop - m.start)
        adds = sum(m.stop - m.start for m in r.recvs) if r.reduce else 0
        several = len(r.recvs) > 1
        return (max(*known, mine + all_in if several else mine)
                + adds * size * machine.add_s_per_byte * factor)

    open_ = [(rank, i) for rank, ex in enumerate(every) for i in range(len(ex.rounds))]
    while open_:
        left = []
        for rank, i in open_:
            done = end(rank, i)
            if done is None:
                left.append((rank, i))
            else:
                ended[rank, i] = done
        assert len(left) < len(open_), "stuck"
        open_ = left
    last = [max([begin_s[rank] + packs[rank]] * (not only_receives[rank] or not ex.rounds)
                + [ended[rank, i] for i in range(len(ex.rounds))])
            for rank, ex in enumerate(every)]
    return np.array(last) + unpacks


def copies(step: Comm, ranks: int, machine: Machine, factor: float) -> np.ndarray:
    """Seconds of packing and unpacking, [2, ranks]."""
    out = np.zeros((2, ranks))
    for rank in range(ranks):
        ex, n = exchange(step, rank), np.zeros(2)
        if step.group is None:
            n[0] = sum(m.stop - m.start for r in ex.rounds for m in r.sends)
            n[1] = sum(m.stop - m.start for r in ex.rounds for m in r.recvs)
        elif step.kind in (Kind.ALLGATHER, Kind.REDUCE_SCATTER):
            n[:] = items(step.source_box(rank)), items(step.destination_box(rank))
        per_byte = np.full(2, machine.copy_s_per_byte)
        if step.group is None and step.reduce:
            per_byte[1] = machine.add_s_per_byte
        out[:, rank] = n * step.item_bytes * per_byte * factor
    return out


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 12])
@pytest.mark.parametrize("choose", [ring, tree, halving])
def test_ranks_wait_only_for_their_partners(choose: Chooser, ranks: int) -> None:
    rng, links = np.random.default_rng(ranks), LinkRates(NetworkModel(MACHINE))
    for seed in range(4):
        network, batch = random_network(seed)
        make = staged_plan if seed % 3 == 2 else random_plan
        for step in lower(network, make(network, batch, ranks, rng), choose).comms:
            begin_s = rng.exponential(2e-5, (2, ranks))
            found = Movement(step, ranks, MACHINE, links, 1.25, 0.0)
            for begin, end in zip(begin_s, found.end_s(begin_s), strict=True):
                expected = walked(step, begin, MACHINE, 1.25)
                here = [step.concerns(rank) and bool(exchange(step, rank).rounds)
                        for rank in range(ranks)]
                np.testing.assert_allclose(end[here], expected[here], rtol=1e-12,
                                           err_msg=f"{step.label} {step.algorithm}")


def test_no_member_leaves_a_library_collective_before_the_last_arrives() -> None:
    network, batch = random_network(0)
    rng = np.random.default_rng(0)
    steps = lower(network, random_plan(network, batch, 4, rng),
                  lambda step: ("mpi", 1)).comms
    step = next(s for s in steps if s.group is not None and s.group.size == 4)
    end = Movement(step, 4, MACHINE, LinkRates(NetworkModel(MACHINE)), 1.0, 5e-3).end_s(
        np.array([0.0, 1.0, 3.0, 2.0]))
    assert end.min() >= 3.005


@pytest.mark.parametrize("ranks", [3, 8])
def test_a_link_of_one_rank_is_no_bottleneck(ranks: int) -> None:
    """A rank sends, and receives, one message after another, with its own link to itself."""
    level = replace(MACHINE.levels[-1], ranks=0)
    free, shared = (replace(MACHINE, levels=(replace(level, links=links),)) for links in (0.0, 1.0))
    rng, several = np.random.default_rng(ranks), 0
    for seed in range(6):
        network, batch = random_network(seed)
        for step in lower(network, random_plan(network, batch, ranks, rng), halving).comms:
            alone, with_link = (
                Movement(step, ranks, machine, LinkRates(NetworkModel(machine)), 1.0, 0.0).alone_s
                for machine in (free, shared))
            np.testing.assert_allclose(with_link, alone, rtol=1e-12, err_msg=step.label)
            several += any(len(r.recvs) > 1 for rank in range(ranks)
                           for r in exchange(step, rank).rounds)
    assert several  # messages of different senders to one rank in one round
