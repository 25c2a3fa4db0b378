"""The messages of all ranks in waves, against each rank's own exchange."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from hpcpar.errors import RunError
from hpcpar.plan.config import Ints
from hpcpar.schedule.algorithms.base import SCATTERED, Collective, Round
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.lower import lower
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Chooser, Comm, Kind
from hpcpar.schedule.waves import collective_waves, table, waves
from tests.added import Pairwise, Star, added
from tests.collectives import BY_KIND
from tests.mpi.networks import random_network
from tests.mpi.plans import random_plan, staged_plan
from tests.unit.schedule.test_sent_bytes import halving, library, ring, tree


def of_exchanges(step: Comm, ranks: int) -> dict[tuple[int, int], list[tuple[int, bool]]]:
    """Items and `adds` of the messages between two ranks, in their order."""
    out = defaultdict(list)
    for rank in range(ranks):
        ex = exchange(step, rank)
        for r in ex.rounds:
            for m in r.recvs:
                out[ex.peers[m.peer], rank].append((m.stop - m.start, r.reduce))
    return out


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("choose", [ring, tree, halving, library])
def test_waves_hold_the_messages_of_every_exchange(choose: Chooser, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for seed in range(4):
        network, batch = random_network(seed)
        make = staged_plan if seed % 3 == 2 else random_plan
        for step in lower(network, make(network, batch, ranks, rng), choose).comms:
            found = defaultdict(list)
            for wave in waves(step, ranks):
                for s, r, n, adds in zip(wave.pairs.senders, wave.pairs.receivers, wave.items,
                                         wave.adds, strict=True):
                    if n:
                        found[int(s), int(r)] += [(int(n), bool(adds))] * wave.times
            expected = {} if step.algorithm == "mpi" else of_exchanges(step, ranks)
            assert found == expected, step.label


class Broken(Star):
    """The hub does not wait for the last member, or has a round less."""

    name = "broken"
    short = False

    def rounds(self, collective: Collective, me: Ints) -> list[Round]:
        first, second = super().rounds(collective, me)
        if me:
            return [first, second]
        return [first] if self.short else [replace(first, recvs=first.recvs[:-1]), second]


@pytest.mark.parametrize(("short", "told"), [
    (False, "broken allreduce: rank 2 sends rank 0 5 items that it never receives"),
    (True, "broken allreduce: member 0 has 1 rounds and member 1 has 2; give all members equally"),
])
def test_rounds_that_do_not_fit_are_named(short: bool, told: str) -> None:
    with added(type("Broken", (Broken,), {"short": short})), pytest.raises(RunError, match=told):
        list(collective_waves("broken", Collective(Kind.ALLREDUCE, (5,) * 3)))


def test_messages_meet_whatever_their_order_in_a_round() -> None:
    """Members send to the next one first, and receive from the next one first."""
    with added(Pairwise):
        (wave,) = collective_waves("pairwise", Collective(Kind.ALLREDUCE, (5,) * 4))
    pairs = wave.pairs
    assert list(zip(pairs.senders.tolist(), pairs.receivers.tolist(), strict=True)) == [
        (a, b) for b in range(4) for a in range(4) if a != b]
    assert pairs.turn.tolist() == [(b - a) % 4 - 1 for b in range(4) for a in range(4) if a != b]


def test_a_chain_moves_its_pieces_side_by_side() -> None:
    """Three members, two pieces: three waves, and the second has two messages."""
    waves = collective_waves("ring", Collective(Kind.BROADCAST, (8,) * 3, segments=2))
    assert [(w.pairs.senders.tolist(), w.items.tolist()) for w in waves] == [
        ([0], [4]), ([0, 1], [4, 4]), ([1], [4])]


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 12, 64])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in (*SCATTERED, Kind.ALLREDUCE)
                                            for name in BY_KIND[kind]])
def test_waves_given_once_are_the_waves_one_by_one(kind: Kind, name: str, p: int) -> None:
    """Equal blocks: a ring's turns are given once."""
    for segments in (1, *ALGORITHMS[name].pieces(kind)):
        alike = Collective.of_blocks(kind, p, 12, segments)
        once, each = (table(name, one) for one in (alike, replace(alike, alike=False)))
        assert [(w.items.tolist(), w.adds.tolist(), w.times) for w in once] == [
            (w.items.tolist(), w.adds.tolist(), w.times) for w in each]
