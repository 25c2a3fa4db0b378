"""The rounds of every algorithm, executed by all members at once without MPI, as strictly as MPI
allows.

A message moves only when both sides have posted it (no buffering), in an arbitrary order of
members; the sent buffer must not change meanwhile, and nobody else may read or write the receive
buffer. So no schedule here deadlocks or relies on luck.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from hpcpar.schedule.algorithms.base import Round
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Kind
from tests.collectives import BY_KIND, rounds_of

EVERY = [
    (kind, name, s) for kind, names in BY_KIND.items() for name in names
    for s in ((1, 2, 3, 4) if name == "ring" else (1,))
]
ROOTED = (Kind.REDUCE, Kind.BROADCAST)
VARIANTS = [variant for variant in EVERY if variant[0] not in ROOTED]
SYMMETRIC = tuple(kind for kind in BY_KIND if kind not in ROOTED)
MEMBERS = range(1, 18)
#: (p, members in each node) of halving by nodes.
NODES = [(p, inner) for p in MEMBERS for inner in range(2, p) if p % inner == 0]


@dataclass
class Posted:
    """A message that one side has posted; `before` is what a sender had there then."""

    place: np.ndarray
    span: tuple[int, int]
    round: int
    before: np.ndarray
    complete: bool = False


@dataclass
class Member:
    """The engine's state of one collective on one rank."""

    wire: np.ndarray
    rounds: list[Round]
    posted: int = 0
    done: int = 0
    most_in_flight: int = 0
    messages: dict[int, list[Posted]] = field(default_factory=lambda: defaultdict(list))
    landings: dict[int,
                   list[tuple[np.ndarray,
                              np.ndarray]]] = field(default_factory=lambda: defaultdict(list))


class Simulation:
    """All members of one collective."""

    def __init__(self, wires: list[np.ndarray], rounds: list[list[Round]], seed: int,
                 in_flight: int) -> None:
        self.in_flight = in_flight
        self.members = [Member(w, r) for w, r in zip(wires, rounds, strict=True)]
        self.sends: dict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        self.recvs: dict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        self.random = random.Random(seed)

    def run(self) -> None:
        for me in range(len(self.members)):
            self.advance(me)
        while ready := [pair for pair, queue in self.sends.items() if queue and self.recvs[pair]]:
            pair = self.random.choice(ready)
            send, recv = self.sends[pair].popleft(), self.recvs[pair].popleft()
            assert send.place.size == recv.place.size, (f"{pair}: {send.place.size} items sent, "
                f"{recv.place.size} expected")
            assert np.array_equal(send.place,
                                  send.before), (f"{pair}: round {send.round} changed while it "
                                                 f"was being sent")
            recv.place[...] = send.place
            send.complete = recv.complete = True
            for me in self.random.sample(pair, 2):
                self.advance(me)
        for me, m in enumerate(self.members):
            assert m.done == len(
                m.rounds), f"member {me} is stuck in round {m.done} of {len(m.rounds)}"
        assert not any(self.sends.values()) and not any(self.recvs.values())

    def advance(self, me: int) -> None:
        m = self.members[me]
        self.post(me)
        while m.done < m.posted and all(x.complete for x in m.messages[m.done]):
            for landing, target in m.landings[m.done]:
                target += landing
            m.done += 1
            self.post(me)

    def post(self, me: int) -> None:
        m = self.members[me]
        while m.posted < len(m.rounds) and m.posted - self.in_flight < m.done:
            r, i = m.rounds[m.posted], m.posted
            in_flight = [x for j in range(m.done, i) for x in m.messages[j]]
            for message in r.recvs:
                target = m.wire[message.start:message.stop]
                busy = [x for x in in_flight if x.span[0] < message.stop
                        and message.start < x.span[1]]
                assert not busy, (f"member {me}: round {i} receives what round {busy[0].round} "
                                  f"still uses")
                place = np.full(target.size, np.nan) if r.reduce else target
                if r.reduce:
                    m.landings[i].append((place, target))
                m.messages[i].append(Posted(place, (message.start, message.stop), i, place))
                self.recvs[message.peer, me].append(m.messages[i][-1])
            for message in r.sends:
                assert message.stop > message.start and message.peer != me
                source = m.wire[message.start:message.stop]
                m.messages[i].append(Posted(source, (message.start, message.stop), i,
                                            source.copy()))
                self.sends[me, message.peer].append(m.messages[i][-1])
            m.posted += 1
            m.most_in_flight = max(m.most_in_flight, m.posted - m.done)


def size_lists(kind: Kind, p: int) -> Iterator[tuple[int, ...]]:
    """Block sizes of the members: equal, uneven, mostly empty, all empty."""
    if kind is Kind.ALLREDUCE:
        yield from ((n,) * p for n in (0, 1, p, 4 * p, 5 * p + 3))
        return
    rng = random.Random(p)
    yield from ((8,) * p, tuple(rng.randrange(1, 9) for _ in range(p)),
                tuple(rng.choice((0, 0, 5, 2)) for _ in range(p)), (0,) * p)


def in_wire(algorithm: str, blocks: list[np.ndarray], me: int, inner: int) -> np.ndarray:
    """The wire of a member: all blocks in its order, its own first."""
    order = ALGORITHMS[algorithm].wire_order(len(blocks), me, inner)
    assert order[0] == me and sorted(order) == list(range(len(blocks)))
    return np.concatenate([blocks[k] for k in order])


def run(kind: Kind, algorithm: str, segments: int, sizes: tuple[int, ...],
        fraction: bool = False, inner: int = 1) -> tuple[Simulation, list[np.ndarray]]:
    """Execute a collective on random values; whole numbers are summed exactly. Gives each member's
    values too.
    """
    p = len(sizes)
    rng = np.random.default_rng(p + sum(sizes))
    items = sizes[0] if kind is Kind.ALLREDUCE else sum(sizes)
    values = [rng.standard_normal(items) if fraction else rng.integers(-99, 99, items).astype(float)
              for _ in range(p)]
    at = np.cumsum((0, *sizes))
    wires = []
    for me in range(p):
        blocks = [values[me][at[k]:at[k + 1]] for k in range(p)]
        if kind is Kind.ALLGATHER:  # a member has its own block only
            blocks = [b if k == me else np.full(b.size, np.nan) for k, b in enumerate(blocks)]
        wires.append(values[me].copy() if kind is Kind.ALLREDUCE
                     else in_wire(algorithm, blocks, me, inner))
    rounds = [rounds_of(kind, algorithm, sizes, me, segments, inner) for me in range(p)]
    simulation = Simulation(wires, rounds, p, ALGORITHMS[algorithm].in_flight(kind, segments))
    simulation.run()
    return simulation, values


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize(("kind", "algorithm", "segments"), VARIANTS)
def test_collectives_compute_their_results(kind: Kind, algorithm: str, segments: int,
                                           p: int) -> None:
    check(kind, algorithm, segments, p)


@pytest.mark.parametrize(("p", "inner"), NODES)
@pytest.mark.parametrize("kind", SYMMETRIC)
def test_collectives_over_nodes_compute_their_results(kind: Kind, p: int, inner: int) -> None:
    for algorithm in {"halving", "leaders"} & {*BY_KIND[kind]}:
        check(kind, algorithm, 1, p, inner)


def check(kind: Kind, algorithm: str, segments: int, p: int, inner: int = 1) -> None:
    """Every member's result is NumPy's, for all lists of sizes."""
    for sizes in size_lists(kind, p):
        simulation, values = run(kind, algorithm, segments, sizes, inner=inner)
        at = np.cumsum((0, *sizes))
        total = np.sum(values, axis=0)
        for me, m in enumerate(simulation.members):
            if kind is Kind.ALLREDUCE:
                np.testing.assert_array_equal(m.wire, total)
            elif kind is Kind.REDUCE_SCATTER:
                np.testing.assert_array_equal(m.wire[: sizes[me]], total[at[me]:at[me + 1]])
            else:
                blocks = [values[k][at[k]:at[k + 1]] for k in range(p)]
                np.testing.assert_array_equal(m.wire, in_wire(algorithm, blocks, me, inner))


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize(("kind", "algorithm", "segments"),
                         [variant for variant in EVERY if variant[0] in ROOTED])
def test_reductions_and_broadcasts(kind: Kind, algorithm: str, segments: int, p: int) -> None:
    """From and to every root; what a tree sends, and its rounds, as few as possible."""
    for root, n in itertools.product(range(p), (0, 1, 5 * p + 3)):
        values = [np.random.default_rng(me).integers(-99, 99, n).astype(float) for me in range(p)]
        wires = [v.copy() if kind is Kind.REDUCE or me == root else np.full(n, np.nan)
                 for me, v in enumerate(values)]
        rounds = [rounds_of(kind, algorithm, (n,) * p, me, segments, root=root) for me in range(p)]
        Simulation(wires, rounds, p, ALGORITHMS[algorithm].in_flight(kind, segments)).run()
        if kind is Kind.REDUCE:
            np.testing.assert_array_equal(wires[root], np.sum(values, axis=0))
        for me in range(p if kind is Kind.BROADCAST else 0):
            np.testing.assert_array_equal(wires[me], values[root])
        sent = sum(m.stop - m.start for mine in rounds for r in mine for m in r.sends)
        assert sent == (p - 1) * n
        if algorithm == "doubling":  # rounds without messages are left out
            assert max(map(len, rounds)) == (math.ceil(math.log2(p)) if n else 0)


@pytest.mark.parametrize(
    ("algorithm", "segments", "p", "inner"),
    [(*v[1:], p, 1) for v in VARIANTS if v[0] is Kind.ALLREDUCE for p in MEMBERS]
    + [(name, 1, p, inner) for p, inner in NODES for name in ("halving", "leaders")])
def test_all_members_get_identical_bits(algorithm: str, segments: int, p: int, inner: int) -> None:
    simulation, values = run(Kind.ALLREDUCE, algorithm, segments, (5 * p + 3,) * p, fraction=True,
                             inner=inner)
    first = simulation.members[0].wire
    np.testing.assert_allclose(first, np.sum(values, axis=0), rtol=0, atol=1e-13)
    for m in simulation.members:
        assert m.wire.tobytes() == first.tobytes()


@pytest.mark.parametrize("p", MEMBERS)
def test_the_order_of_progress_does_not_change_sums(p: int) -> None:
    """Two runs on the same ranks give the same bits, whoever is faster."""
    for algorithm, segments in (("ring", 3), ("doubling", 1),
                                ("halving", 1)):
        results = set()
        for seed in range(4):
            rng = np.random.default_rng(p)
            wires = [rng.standard_normal(5 * p) for _ in range(p)]
            simulation = Simulation(wires,
                                    [rounds_of(Kind.ALLREDUCE, algorithm, (5 * p,) * p, me,
                                                segments) for me in range(p)], seed,
                                    ALGORITHMS[algorithm].in_flight(Kind.ALLREDUCE, segments))
            simulation.run()
            results.add(wires[0].tobytes())
        assert len(results) == 1


def sent(kind: Kind, algorithm: str, sizes: tuple[int, ...],
         segments: int) -> list[tuple[int, int]]:
    """(messages, items) that each member sends."""
    out = []
    for me in range(len(sizes)):
        messages = [m for r in rounds_of(kind, algorithm, sizes, me, segments) for m in r.sends]
        out.append((len(messages), sum(m.stop - m.start for m in messages)))
    return out


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize(("kind", "algorithm", "segments"), VARIANTS)
def test_counts_of_equal_blocks(kind: Kind, algorithm: str, segments: int, p: int) -> None:
    """Thakur, Rabenseifner and Gropp (2005): rings of p - 1 rounds, trees of ceil(log2 p), and the
    least number of items.
    """
    block = 12
    if kind is Kind.ALLREDUCE and algorithm == "doubling":
        n, power = 12, 1 << (p.bit_length() - 1)
        rounds = power.bit_length() - 1
        extra = p - power
        pairs = [(1, n), (rounds + 1, (rounds + 1) * n)]
        assert sent(kind, algorithm, (n,) * p,
                    1) == pairs * extra + [(rounds, rounds * n)] * (p - 2 * extra)
    elif kind is Kind.ALLREDUCE and algorithm == "halving":
        every = sent(kind, algorithm, (block * p,) * p, 1)
        assert {items for _, items in every} == {2 * (p - 1) * block}
        rounds = rounds_of(kind, algorithm, (block * p,) * p, 0, 1)
        assert len(rounds) == 2 * math.ceil(math.log2(p))
    elif kind is Kind.ALLREDUCE:
        assert sent(kind, algorithm, (block * p,) * p,
                    segments) == [(2 * (p - 1) * segments, 2 * (p - 1) * block)] * p
    else:
        messages = math.ceil(math.log2(p)) if algorithm == "halving" else (p - 1) * segments
        assert sent(kind, algorithm, (block,) * p, segments) == [(messages, (p - 1) * block)] * p


@pytest.mark.parametrize("p", MEMBERS)
@pytest.mark.parametrize(("kind", "algorithm", "segments"), VARIANTS)
def test_items_of_any_blocks(kind: Kind, algorithm: str, segments: int, p: int) -> None:
    """All members together: every block crosses p - 1 links, once to be gathered and once to be
    summed.
    """
    for sizes in size_lists(kind, p):
        total = sum(items for _, items in sent(kind, algorithm, sizes, segments))
        if kind is not Kind.ALLREDUCE:
            assert total == (p - 1) * sum(sizes)
        elif algorithm == "ring":
            assert total == 2 * (p - 1) * sizes[0]


@pytest.mark.parametrize(("p", "inner"), NODES)
def test_halving_between_nodes_sends_its_stated_bytes(p: int, inner: int) -> None:
    """Every member sends 2 n / inner (1 - 1 / nodes) of a buffer of n items to other nodes, in the
    number of rounds that halving takes between the nodes alone.
    """
    n, nodes = 12 * p, p // inner
    for me in range(p):
        rounds = rounds_of(Kind.ALLREDUCE, "halving", (n,) * p, me, 1, inner)
        out = [[m for m in r.sends if m.peer // inner != me // inner] for r in rounds]
        assert sum(m.stop - m.start for r in out for m in r) == 2 * 12 * (nodes - 1)
        assert sum(map(bool, out)) == 2 * math.ceil(math.log2(nodes))


@pytest.mark.parametrize("p", MEMBERS[1:])
@pytest.mark.parametrize(("kind", "segments"), list(itertools.product(SYMMETRIC, (1, 2, 3, 4))))
def test_segments_overlap(kind: Kind, segments: int, p: int) -> None:
    """As many rounds of a ring are in flight as it has segments; the engine's landing places are
    enough for no more.
    """
    sizes = (8 * p,) * p if kind is Kind.ALLREDUCE else (8,) * p
    simulation, _ = run(kind, "ring", segments, sizes)
    assert {m.most_in_flight for m in simulation.members} == {segments}
