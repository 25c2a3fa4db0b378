"""The walk through waves, against one that takes its messages one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.links import LinkRates
from hpcpar.cost.network.walk import Walk
from hpcpar.machine import files
from hpcpar.machine.model import Level
from hpcpar.schedule.waves import Pairs, Wave

RANKS, ADD_S = 6, 3.0
#: Latency 1 s and 2 s/byte in nodes of 3 ranks; 10 s and 5 s/byte between them; links are free.
NEAR, FAR = (1.0, 2.0), (10.0, 5.0)
LINKS = LinkRates(NetworkModel(replace(files.load("local"), levels=(
    Level("node", 3, *NEAR), Level("network", 0, *FAR)), collectives=())))


def wave(*messages: tuple[int, int, int, int], times: int = 1) -> Wave:
    """Messages (sender, receiver, items, adds); a sender's are in the order of their turns."""
    senders, receivers, items, adds = np.array(messages).T
    turn = np.array([(senders[:i] == a).sum() for i, a in enumerate(senders)])
    return Wave(Pairs(senders, receivers, turn), items, adds, times)


def one_by_one(waves: Sequence[Wave], begin_s: np.ndarray, in_flight: int = 1) -> np.ndarray:
    """When each rank ends."""
    ends, port = [begin_s] * in_flight, list(begin_s)
    for w in [w for each in waves for w in [each] * each.times]:
        ready = [max(a, b) for a, b in zip(ends[-in_flight], port, strict=True)]
        done, gone = list(ends[-1]), list(ready)
        sent, received, added = np.zeros((3, RANKS))
        pairs = w.pairs
        for at in np.argsort(pairs.turn, kind="stable"):
            a, b, n = pairs.senders[at], pairs.receivers[at], w.items[at]
            alpha_s, s_per_byte = NEAR if a // 3 == b // 3 else FAR
            message_s = alpha_s + s_per_byte * n
            sent[a] += message_s
            received[b] += message_s
            added[b] += n * ADD_S * w.adds[at]
            end_s = max(ready[a], ready[b]) + sent[a]
            gone[a] = max(gone[a], end_s)
            # messages arrive one after another, too
            done[a], done[b] = max(done[a], end_s), max(done[b], end_s, ready[b] + received[b])
        port = [max(a, b) for a, b in zip(port, gone, strict=True)]
        ends.append(np.array(done) + added)
    return ends[-1]


RING = [(i, (i + 1) % RANKS, 4, 1) for i in range(RANKS)]
NEXT = [(i, (i + 1) % RANKS, 4, 0) for i in range(RANKS)]
#: Two messages of a sender, and two to a receiver.
SPREAD = [(0, 4, 7, 0), (0, 1, 2, 0), (3, 4, 5, 0), (2, 5, 1, 0)]
FAN = [(0, 2, 3, 1), (1, 2, 8, 1)]
CASES = {"ring": [wave(*RING, times=5), wave(*NEXT, times=5)], "spread": [wave(*SPREAD)],
         "fan": [wave(*FAN)], "both": [wave(*SPREAD), wave(*FAN), wave(*NEXT)],
         "chain": [wave((0, 1, 2, 0)), wave((1, 2, 2, 0)), wave((2, 5, 2, 1), times=3)],
         "apart": [wave((0, 1, 2, 0)), wave((3, 4, 9, 0)), wave((4, 5, 1, 0))],
         "added": [wave((0, 1, 2, 1)), wave((0, 2, 2, 0))],  # the sender need not wait for the sum
         "swap": [wave((0, 1, 2, 1), (1, 0, 2, 1)), wave((0, 3, 2, 0), (1, 4, 2, 0))]}


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_walk_equals_its_messages_one_by_one(name: str, in_flight: int) -> None:
    """For ranks that start together or not, in one group whose repeated waves are skipped."""
    walk = Walk.of(CASES[name], LINKS, in_flight, np.arange(RANKS)[None])
    begins_s = np.array([[0.0] * RANKS, [0.0, 7.0, 50.0, 3.0, 20.0, 1.0]])
    found = walk.end_s(begins_s, walk.timed(1, ADD_S))
    for begin_s, end_s in zip(begins_s, found, strict=True):
        np.testing.assert_allclose(end_s, one_by_one(CASES[name], begin_s, in_flight), rtol=1e-12)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_last_rank_ends_as_the_walk_does(name: str, in_flight: int) -> None:
    """Where each wave's slowest message waits for the one before, their times are added."""
    walk = Walk.of(CASES[name], LINKS, in_flight, np.arange(RANKS)[None])
    sizes = np.array([1.0, 2.0, 5.0])
    for size, found_s in zip(sizes, walk.alone_s(sizes, ADD_S), strict=True):
        scaled = [replace(w, items=w.items * size) for w in CASES[name]]
        last_s = one_by_one(scaled, np.zeros(RANKS), in_flight).max()
        assert found_s == pytest.approx(last_s, rel=1e-12)
