"""Collectives against NumPy's sums: every algorithm, all ranks and subgroups, any block sizes,
several in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.errors import RunError
from hpcpar.plan.config import MeshAxis
from hpcpar.schedule.steps import Comm, Group, Kind, Pattern
from tests.mpi.movements import Boxes, move, pairs, step, variants
from tests.mpi.sharing import allgather

P = world().size
KINDS = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER)
#: All ranks; neighbors; ranks a stride apart; and ranks that differ in two separate digits (2 x 2
#: of 8).
GROUPS = [Group((MeshAxis(stride, size),))
          for stride, size in pairs(P)] + [Group((MeshAxis(2, 2), MeshAxis(1, 2)))] * (P == 4)
GROUPS += [Group((MeshAxis(4, 2), MeshAxis(1, 2))), Group((MeshAxis(2, 2),)),
           Group((MeshAxis(1, 2),))] * (P == 8)


def sizes(rng: np.random.Generator, members: int, spread: str) -> list[int]:
    """Block sizes of a group's members."""
    if spread == "even":
        return [12] * members
    if spread == "one":
        return [0] * (members - 1) + [7]
    return [int(n) for n in rng.integers(0, 40, members) * (rng.random(members) < 0.7)]


@dataclass
class Case:
    """A collective with the values of every rank."""

    step: Comm
    values: list[np.ndarray]

    def source_box(self, rank: int) -> np.ndarray:
        return self.values[rank]

    def expected(self, rank: int) -> np.ndarray:
        """The result by NumPy."""
        s = self.step
        assert s.group is not None
        members = s.group.members(rank)
        if s.kind is Kind.ALLGATHER:
            return np.concatenate([self.values[m] for m in members])
        start, stop = s.destination_box(rank)[0]
        return np.sum([self.values[m] for m in members], axis=0)[start:stop]


def case(kind: Kind, group: Group, spread: str, seed: int, index: int = 0) -> Case:
    """A collective; groups that work side by side have sizes of their own."""
    rng = np.random.default_rng(seed)
    whole: dict[int, tuple[int, int]] = {}
    block: dict[int, tuple[int, int]] = {}
    for rank in range(P):
        members = group.members(rank)
        if rank != members[0]:
            continue
        at = 0
        for member, size in zip(members, sizes(rng, len(members), spread), strict=True):
            block[member] = (at, at + size)
            at += size
        whole |= dict.fromkeys(members, (0, at))
    all_of, own = (Boxes(tuple((boxes[rank],) for rank in range(P))) for boxes in (whole, block))
    source = own if kind is Kind.ALLGATHER else all_of
    destination = own if kind is Kind.REDUCE_SCATTER else all_of
    made = step(Pattern(kind, mesh_axes=group.mesh_axes), source, destination, index)
    return Case(made, [rng.standard_normal(source.items(rank)) for rank in range(P)])


@pytest.mark.parametrize("spread", ["even", "one", "random"])
@pytest.mark.parametrize("group", GROUPS,
                         ids=lambda g: "+".join(f"{d.size}by{d.stride}" for d in g.mesh_axes))
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
def test_collectives_equal_numpy(kind: Kind, group: Group, spread: str, ranks: World,
                                 communicator: Communicator) -> None:
    for seed in range(3 if spread == "random" else 1):
        made = case(kind, group, spread, seed)
        for s in variants(made.step):
            found = move(communicator, s, made.source_box(ranks.rank))
            what = f"{s.algorithm} in {s.segments} segments, seed {seed}"
            np.testing.assert_allclose(found, made.expected(ranks.rank), rtol=0, atol=1e-13 * P,
                                       err_msg=what)
            if kind is Kind.ALLREDUCE:
                bits = allgather(ranks, found.tobytes())
                assert len({bits[m]
                            for m in group.members(
                    ranks.rank)}) == 1, f"{what}: members hold different bits"


@pytest.mark.parametrize("seed", range(3))
def test_several_collectives_may_be_in_flight(seed: int, ranks: World,
                                              communicator: Communicator) -> None:
    """Started in one order, awaited by every rank in an order of its own, twice over the same bound
    transfers.
    """
    rng = np.random.default_rng(seed)
    cases: list[Case] = []
    for index in range(8):
        made = case(KINDS[int(rng.integers(3))], GROUPS[int(rng.integers(len(GROUPS)))], "random",
                    10 * seed + index, index)
        ways = variants(made.step)
        cases.append(Case(ways[int(rng.integers(len(ways)))], made.values))
    held = [np.zeros_like(c.source_box(ranks.rank)) for c in cases]
    wanted = [a if c.step.kind is Kind.ALLREDUCE else np.zeros_like(c.expected(ranks.rank))
              for a, c in zip(held, cases, strict=True)]
    transfers = [communicator.bind(c.step, a, b)
                 for c, a, b in zip(cases, held, wanted, strict=True)]
    own = np.random.default_rng(100 * seed + ranks.rank)
    for repeat in range(2):
        for c, a, t in zip(cases, held, transfers, strict=True):
            a[...] = c.source_box(ranks.rank) * (repeat + 1)
            communicator.start(t)
            if own.random() < 0.5:
                communicator.progress()
        for i in own.permutation(len(cases)):
            communicator.wait(transfers[i])
        for i, (c, b) in enumerate(zip(cases, wanted, strict=True)):
            np.testing.assert_allclose(b, c.expected(ranks.rank) * (repeat + 1), rtol=0,
                                       atol=1e-13 * P, err_msg=f"repeat {repeat}, step {i}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
def test_a_buffer_that_does_not_match_is_refused(kind: Kind, ranks: World,
                                                 communicator: Communicator) -> None:
    """The message names the rank, the step, and the fault."""
    made = case(kind, GROUPS[-1] if P == 1 else Group((MeshAxis(1, P),)), "even", 0, index=5)
    held, wanted = made.source_box(ranks.rank), np.zeros_like(made.expected(ranks.rank))
    if kind is Kind.ALLREDUCE:
        wanted = held
    where = rf"rank {ranks.rank}, step 5 \(test.forward.{kind.value}\)"
    for wrong_held, wrong_wanted, message in (
        (np.zeros(held.size + 1), wanted,
         rf"{where}: the held array has shape \({held.size + 1},\), but the schedule says "
         rf"\({held.size},\)"),
        (held, np.zeros(wanted.size + 1), rf"{where}: the wanted array has shape"),
        (held.astype(np.float32), wanted,
         rf"{where}: the held array has items of 4 bytes, but the schedule says 8"),
        (held, wanted.astype(np.float32), rf"{where}: the wanted array has items of 4 bytes"),
    ):
        with pytest.raises(RunError, match=message):
            communicator.bind(made.step, wrong_held, wrong_wanted)
    # what matches still goes through afterwards
    np.testing.assert_allclose(move(communicator, made.step, made.source_box(ranks.rank)),
                               made.expected(ranks.rank), rtol=0, atol=1e-13 * P)
