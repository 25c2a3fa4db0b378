"""Messages and bytes of all ranks at once, against each rank's own messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcpar.schedule.algorithms.base import Collective
from hpcpar.schedule.lower import lower
from hpcpar.schedule.messages import counts
from hpcpar.schedule.sent_bytes import sent, sent_bytes
from hpcpar.schedule.steps import Choice, Chooser, Comm, Kind
from hpcpar.schedule.waves import collective_waves
from tests.collectives import BY_KIND, rounds_of
from tests.mpi.networks import random_network, random_unet
from tests.mpi.plans import random_plan, staged_plan

ROOTED = (Kind.REDUCE, Kind.BROADCAST)


def ring(step: Comm) -> tuple[str, int]:
    return "ring", 2


def tree(step: Comm) -> tuple[str, int]:
    scattered = step.pattern.kinds[0] in (Kind.ALLGATHER, Kind.REDUCE_SCATTER)
    return ("halving" if scattered else "doubling"), 1


def halving(step: Comm) -> Choice:
    """By nodes of two members, where they fit."""
    if step.pattern.kinds[0] in ROOTED:
        return Choice("direct")
    even = math.prod(int(d.size) for d in step.pattern.mesh_axes) % 2 == 0
    return Choice("halving", inner=2 if even else 1)


def library(step: Comm) -> tuple[str, int]:
    return ("direct" if step.pattern.kinds[0] in ROOTED else "mpi"), 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("choose", [ring, tree, halving, library])
def test_random_plans_send_the_bytes_of_their_messages(choose: Chooser, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for seed in range(8):
        network, batch = (random_unet if seed > 5 else random_network)(seed)
        make = staged_plan if seed % 3 == 2 and ranks > 1 else random_plan
        schedule = lower(network, make(network, batch, ranks, rng), choose)
        total = np.zeros(ranks, np.int64)
        for step in schedule.comms:
            each = [counts(step, rank) for rank in range(ranks)]
            found = sent(step, ranks)
            assert found.messages.tolist() == [c.messages for c in each], step.label
            assert found.n_bytes.tolist() == [c.sent_bytes for c in each], step.label
            total += found.n_bytes
        assert sent_bytes(schedule).tolist() == total.tolist()


@pytest.mark.parametrize("p", range(2, 18))
@pytest.mark.parametrize("kind", list(BY_KIND))
def test_members_of_a_group_send_the_bytes_of_their_rounds(kind: Kind, p: int) -> None:
    """Uneven and empty blocks, and rings of pieces that some blocks are too small for."""
    rng = np.random.default_rng(p)
    for algorithm in BY_KIND[kind]:
        for segments in (1, 2, 4) if algorithm == "ring" else (1,):
            n = int(rng.integers(1, 40))
            whole = kind is Kind.ALLREDUCE or kind in ROOTED
            sizes = (n,) * p if whole else tuple(rng.integers(0, 9, p).tolist())
            root = int(rng.integers(p))
            messages, items = np.zeros((2, p), np.int64)
            for wave in collective_waves(algorithm, Collective(kind, sizes, segments, root=root)):
                np.add.at(messages, wave.pairs.senders, wave.times)
                np.add.at(items, wave.pairs.senders, wave.items * wave.times)
            for me in range(p):
                rounds = rounds_of(kind, algorithm, sizes, me, segments, root=root)
                sends = [m.stop - m.start for r in rounds for m in r.sends]
                assert (messages[me], items[me]) == (len(sends), sum(sends))
