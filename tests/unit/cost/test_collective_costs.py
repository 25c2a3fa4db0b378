"""Collective costs against the rounds, and the choice of algorithms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hpcpar.cost.network.algorithm_choice import LEAST_PIECE_BYTES, cheapest, schedule_for
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import Links, NetworkModel, Route, route
from hpcpar.cost.network.transfer import paper_s
from hpcpar.machine import files
from hpcpar.machine.model import Level
from hpcpar.plan.boxes import block
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.algorithms.base import Collective, Round, slots_of
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import SUMMING, Kind
from hpcpar.schedule.waves import Most, most
from tests.collectives import BY_KIND, rounds_of

LOCAL = files.load("local")
CORI = files.load("cori-knl")
SMALL = NetworkSpec("alexnet", (3, 67, 67), 20)
ROOTED = (Kind.REDUCE, Kind.BROADCAST)
SCATTERED = (Kind.ALLGATHER, Kind.REDUCE_SCATTER)
CASES = [(kind, name) for kind, names in BY_KIND.items() for name in names]


def one_level(p: int, alpha_s: float, beta_s_per_byte: float, add_s_per_byte: float = 0.0
              ) -> Route:
    """The route of a group whose messages all cross the same links."""
    machine = replace(LOCAL, levels=(Level("", 0, alpha_s, beta_s_per_byte),), collectives=(),
                      add_s_per_byte=add_s_per_byte)
    return route(NetworkModel(machine), [MeshAxis(1, p)], p)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("p", range(2, 18))
def test_the_most_that_a_member_does_is_its_walked_rounds(kind: Kind, name: str, p: int) -> None:
    """On equal blocks: messages and blocks of the busiest member, and what it adds at once."""
    block = 12
    n = block if kind in SCATTERED else block * p
    for segments in (1, *ALGORITHMS[name].pieces(kind)):
        every = [rounds_of(kind, name, (n,) * p, me, segments) for me in range(p)]
        sends = [[m for r in rounds for m in r.sends] for rounds in every]
        found, unit = most(name, kind, p, segments), n if kind in ROOTED else block
        assert found.messages == max(map(len, sends))
        assert found.blocks * unit == pytest.approx(
            max(sum(m.stop - m.start for m in mine) for mine in sends))
        lands = max(sum(slots_of(rounds, segments).values()) for rounds in every)
        assert lands <= found.landing * unit * (1 + 1e-12)


def walk(kind: Kind, name: str, sizes: tuple[int, ...], me: int, segments: int) -> tuple[int, int]:
    rounds = rounds_of(kind, name, sizes, me, segments)
    messages = [m for r in rounds for m in r.sends]
    return len(messages), sum(m.stop - m.start for m in messages)


def blocks_of(n: int, p: int) -> tuple[int, ...]:
    return tuple(b - a for a, b in (block(n, p, i) for i in range(p)))


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("p", range(2, 18))
def test_sent_equals_the_walked_rounds(kind: Kind, name: str, p: int) -> None:
    """The busiest member sends the stated bytes: in a ring always, in other algorithms for even
    blocks; with uneven blocks, halving is off by at most an item per round.
    """
    for n in (p, 3 * p, 3 * p + 1, 50 * p, 97 * p - 1):
        for segments in (1, 2, 3) if name == "ring" and n >= 3 * p else (1,):
            sizes = blocks_of(n, p) if kind in SCATTERED else (n,) * p
            walked = [walk(kind, name, sizes, me, segments) for me in range(p)]
            found = most(name, kind, p, segments)
            items = found.items(kind, p, n, n // p, -(-n // p))
            uneven = 2 * math.ceil(math.log2(p)) if name == "halving" and n % p else 0
            if segments == 1 or n % p == 0:
                assert found.messages == max(m for m, _ in walked), (n, segments)
            assert abs(items - max(i for _, i in walked)) <= uneven, (n, segments)


@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[0] in SUMMING])
@pytest.mark.parametrize("p", range(2, 18))
def test_landing_places_are_enough(kind: Kind, name: str, p: int) -> None:
    """Uneven sizes and any root, too; the largest rank needs at most its bound."""
    for segments in (1, *ALGORITHMS[name].pieces(kind)):
        for root in (0, p // 2, p - 1) if kind in ROOTED else (0,):
            one = Collective.of(kind, p, 7 * p + 3, segments, root=root)
            lands = max(sum(slots_of(rounds_of(kind, name, one.sizes, me, segments, root=root),
                                     segments).values()) for me in range(p))
            blocks, n = most(name, kind, p).landing, max(one.sizes)
            assert lands <= (-(-blocks * n // p) if kind is Kind.ALLREDUCE else blocks * n)


def test_the_most_of_a_large_group_is_that_of_its_ends() -> None:
    assert most("ring", Kind.ALLREDUCE, 10**6) == Most(2 * (10**6 - 1), 2 * (10**6 - 1), 1)
    assert most("halving", Kind.ALLGATHER, 1 << 20).blocks == (1 << 20) - 1
    assert most("doubling", Kind.BROADCAST, 3000).messages == 12


@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[0] not in ROOTED])
@pytest.mark.parametrize("p", range(2, 18))
def test_seconds_count_the_rounds_and_their_bytes(kind: Kind, name: str, p: int) -> None:
    """With alpha alone a collective costs its rounds, and a second message where parts pass the end
    of the buffer; with beta alone the bytes of its busiest member, with gamma alone its sums.
    """
    n = 24 * p
    sizes = (24,) * p if kind in SCATTERED else (n,) * p
    every = [rounds_of(kind, name, sizes, me, 1) for me in range(p)]
    alpha, beta, gamma = (one_level(p, *one) for one in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0, 1.0)))
    busiest = max(every, key=len)

    def count(rounds: list[Round], summing: bool) -> int:
        taken = [r for r in rounds if r.reduce] if summing else rounds
        return sum(max(sum(m.stop - m.start for m in side) for side in (r.sends, r.recvs))
                   for r in taken)

    assert collective_s(kind, name, n, 1, alpha) == sum(
        max([1, *(len(side) for rounds in every if len(rounds) > i
                  for side in (rounds[i].sends, rounds[i].recvs))]) for i in range(len(busiest)))
    assert collective_s(kind, name, n, 1, beta) == pytest.approx(count(busiest, False))
    assert collective_s(kind, name, n, 1, gamma) == pytest.approx(
        max(count(r, True) for r in every))


def test_ring_formulas() -> None:
    level, links = one_level(8, 3e-6, 2e-9), Links.of(Level("", 0, 3e-6, 2e-9))
    assert collective_s(Kind.ALLREDUCE, "ring", 1e6, 1,
                        level) == pytest.approx(2 * 7 * (3e-6 + 1e6 / 8 * 2e-9))
    assert collective_s(Kind.ALLREDUCE, "ring", 1e6, 4,
                        level) == pytest.approx(2 * 7 * (4 * 3e-6 + 1e6 / 8 * 2e-9))
    assert collective_s(Kind.ALLGATHER, "ring", 1e6, 1,
                        level) == pytest.approx(7 * (3e-6 + 1e6 / 8 * 2e-9))
    assert paper_s(Kind.ALLGATHER, 5, 1e6, links) == pytest.approx(3 * 3e-6 + 4 / 5 * 1e6 * 2e-9)
    assert paper_s(Kind.ALLREDUCE, 5, 1e6, links) == 2 * paper_s(Kind.ALLGATHER, 5, 1e6, links)
    assert collective_s(Kind.ALLREDUCE, "ring", 1e6, 1,
                        one_level(1, 3e-6, 2e-9)) == paper_s(Kind.ALLREDUCE, 1, 1e6, links) == 0
    # one member's link, message by message
    for kind, sums in ((Kind.REDUCE, 1), (Kind.BROADCAST, 0)):
        assert collective_s(kind, "direct", 1e6, 1, one_level(8, 3e-6, 2e-9, 1e-9)
                            ) == pytest.approx(7 * (3e-6 + 1e6 * (2e-9 + sums * 1e-9)))
    tree = collective_s(Kind.ALLREDUCE, "doubling", 100, 1, level)
    ring = collective_s(Kind.ALLREDUCE, "ring", 100, 1, level)
    assert collective_s(Kind.ALLREDUCE, "mpi", 100, 1, level) == tree < ring


def test_segments_hide_sums() -> None:
    level = one_level(4, 1e-6, 1e-9, 5e-10)
    one, four = (collective_s(Kind.ALLREDUCE, "ring", 6.4e7, s, level) for s in (1, 4))
    bare = collective_s(Kind.ALLREDUCE, "ring", 6.4e7, 4, one_level(4, 1e-6, 1e-9))
    # the last sum too: the first segment is gathered meanwhile
    assert bare == pytest.approx(four, rel=1e-12) and four < one


def test_the_cheapest_algorithm_depends_on_the_size() -> None:
    slow, fast, faster = (one_level(8, 2e-6, 1e-9, add) for add in (3e-9, 1e-9, 1e-10))
    either = BY_KIND[Kind.ALLREDUCE]
    name, segments, seconds = cheapest(Kind.ALLREDUCE, 16, faster, either)
    expected = collective_s(Kind.ALLREDUCE, "doubling", 16, 1, faster)
    assert (name, segments, seconds) == ("doubling", 1, expected)
    name, segments, seconds = cheapest(Kind.ALLREDUCE, 10**9, fast, either)
    assert (name, segments) == ("ring", 2)  # enough, because adding is as fast as the links
    name, segments, seconds = cheapest(Kind.ALLREDUCE, 10**9, slow, either)
    assert (name, segments) == ("ring", 4)
    assert seconds == min(collective_s(Kind.ALLREDUCE, "ring", 10**9, s, slow)
                          for s in (1, 2, 4))
    for n in (10**5, 10**6, 10**7):
        _, segments, _ = cheapest(Kind.ALLREDUCE, n, fast, ("ring",))
        assert segments == 1 or n / 8 / segments >= LEAST_PIECE_BYTES
    network = SMALL.build()
    for collectives, allowed in (("ring", {"ring"}), ("tree", {"doubling", "halving"}),
                                 ("halving", {"halving"}), ("mpi", {"mpi"})):
        plan = make_plan(SMALL, "grid:2x2", 4, 8, machine=LOCAL,
                         collectives=collectives)
        assert {s.algorithm for s in schedule_for(network, plan).comms if s.group} == allowed
