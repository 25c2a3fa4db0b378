"""The messages of all ranks in waves, against each rank's own exchange."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from hpcpar.errors import RunError
from hpcpar.schedule.lower import lower
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Chooser, Comm
from hpcpar.schedule.waves import _matched, _Messages, waves
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
                assert (np.diff(wave.pairs.receivers) >= 0).all()
                for s, r, n, adds in zip(wave.pairs.senders, wave.pairs.receivers, wave.items,
                                         wave.adds, strict=True):
                    if n:
                        found[int(s), int(r)].append((int(n), bool(adds)))
            expected = {} if step.algorithm == "mpi" else of_exchanges(step, ranks)
            assert found == expected, step.label


@pytest.mark.parametrize(("sends", "receives", "told"), [
    ([(0, 1, 0, 0, 5, 0)], [], "rank 0 sends rank 1 5 items that it never receives"),
    ([], [(1, 0, 0, 0, 7, 0)], "rank 0 never sends rank 1 the 7 items that it waits for"),
    ([(0, 1, 0, 0, 5, 0)], [(1, 0, 0, 0, 7, 0)], "rank 0 sends rank 1 5 items"),
    ([(0, 1, 0, 0, 5, 0)] * 2, [(1, 0, 0, 0, 5, 0)], "differ in number"),
])
def test_a_message_without_a_counterpart_is_named(sends: list[tuple[int, ...]],
                                                  receives: list[tuple[int, ...]],
                                                  told: str) -> None:
    messages = _Messages(*(np.array(rows, np.int64).reshape(-1, 6) for rows in (sends, receives)))
    with pytest.raises(RunError, match=told):
        list(_matched("step 0", messages))


def test_rounds_of_different_members_share_a_wave_only_where_they_meet() -> None:
    """A chain: rank 0 sends to 1, which sends on to 2: three ranks, two waves."""
    sends = np.array([(0, 1, 0, 0, 4, 0), (1, 2, 1, 0, 4, 0)])
    receives = np.array([(1, 0, 0, 0, 4, 0), (2, 1, 0, 0, 4, 0)])
    (_, first), (_, second) = _matched("step 0", _Messages(sends, receives))
    assert (first.pairs.senders.tolist(), second.pairs.senders.tolist()) == ([0], [1])
