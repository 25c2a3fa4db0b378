"""The lowering: patterns of the named strategies, and messages of any configurations against boxes
intersected one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest

from hpcpar.errors import InputError
from hpcpar.plan.boxes import Box, intersect, items
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.schedule.edges import edges
from hpcpar.schedule.exchange import Kept, Piece
from hpcpar.schedule.lower import lower
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase, Role, Schedule
from tests.collectives import BY_KIND
from tests.strategies import whole_sums
from tests.unit.brute import random_plan

LENET = NetworkSpec("lenet5", (1, 16, 16), 10)
NETWORK = LENET.build()
WEIGHTED = {layer.name for layer in NETWORK.weighted}
RANDOM = [(seed, ranks) for seed, ranks in enumerate((2, 3, 4, 6, 8, 12) * 8)]


def ring(step: Comm) -> tuple[str, int]:
    return "ring", 2


def tree(step: Comm) -> tuple[str, int]:
    return BY_KIND[step.pattern.kinds[0]][1], 1


def schedule(strategy: str, ranks: int, gather: str = "lazy", overlap: str = "full") -> Schedule:
    return lower(NETWORK, make_plan(LENET, strategy, ranks, 8, gather=gather, overlap=overlap),
                 ring)


def kinds(s: Schedule, phase: Phase) -> dict[str, Kind]:
    """Pattern of every layer's communication in a phase."""
    return {c.layer: c.kind for c in s.comms if c.phase is phase}


# -- named strategies ------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["data", "filter", "spatial", "owt", "grid:1x1", "domain:1x1"])
def test_one_rank_communicates_nothing(strategy: str) -> None:
    assert schedule(strategy, 1).comms == ()


@pytest.mark.parametrize("gather", ["lazy", "eager"])
def test_data_parallelism_sums_only_gradients_and_the_loss(gather: str) -> None:
    s = schedule("data", 4, gather)
    assert {c.kind for c in s.comms} == {Kind.ALLREDUCE}
    assert set(kinds(s, Phase.GRADIENT)) == WEIGHTED
    assert [c.phase for c in s.comms if c.phase is not Phase.GRADIENT] == [Phase.LOSS]
    for c in s.comms:
        assert c.group is not None and c.group.members(2) == (0, 1, 2, 3)


@pytest.mark.parametrize(("gather", "forward", "backward"), [
    ("lazy", {"conv2", "fc1", "fc2", "fc3", "loss"}, Kind.REDUCE_SCATTER),
    ("eager", {"relu1", "relu2", "relu3", "relu4", "loss"}, Kind.ALLREDUCE),
])
def test_filter_parallelism_gathers_forward_and_sums_backward(gather: str, forward: set[str],
                                                              backward: Kind) -> None:
    s = schedule("filter", 4, gather)
    assert kinds(s, Phase.FORWARD) == dict.fromkeys(forward, Kind.ALLGATHER)
    assert kinds(s, Phase.BACKWARD) == dict.fromkeys(WEIGHTED - {"conv1"}, backward)
    assert kinds(s, Phase.GRADIENT) == {}  # every rank owns its rows of the weights


@pytest.mark.parametrize(("ranks", "gather", "moves"), [
    (8, "eager", [(Kind.ALLREDUCE, (4, 5, 6, 7), 192), (Kind.ALLGATHER, (2, 6), 384)]),
    (2, "eager", [(Kind.ALLGATHER, (0, 1), 384)]),
    (7, "eager", [(Kind.ALLREDUCE, tuple(range(7)), 384)]),
    (8, "lazy", [(Kind.REDUCE_SCATTER, (4, 5, 6, 7), 192)]),
    (7, "lazy", [(Kind.REDUCE_SCATTER, tuple(range(7)), 384)]),
])
def test_input_gradients_are_summed_within_groups_of_channels(
        ranks: int, gather: str, moves: list[tuple[Kind, tuple[int, ...], int]]) -> None:
    """AlexNet's conv4: two groups of 192 input channels."""
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    plan = make_plan(spec, "filter", ranks, 8, gather=gather)
    found = [c for c in lower(spec.build(), plan, ring).comms
             if c.layer == "conv4" and c.phase is Phase.BACKWARD]
    assert [c.kind for c in found] == [kind for kind, _, _ in moves]
    for step, (kind, members, channels) in zip(found, moves, strict=True):
        assert step.group is not None and step.group.members(members[-1]) == members
        box = (step.destination_box if kind is Kind.ALLGATHER else step.source_box)(members[-1])
        assert box[1][1] - box[1][0] == channels


def test_lazy_gathering_moves_less() -> None:
    """Gathering after pooling moves a quarter of the bytes of gathering before it."""
    lazy, eager = ({c.layer: c for c in schedule("filter", 4, g).comms if c.phase is Phase.FORWARD}
                   for g in ("lazy", "eager"))
    assert 4 * items(lazy["conv2"].destination_box(0)) == items(eager["relu1"].destination_box(0))


@pytest.mark.parametrize("strategy", ["domain:4x1", "domain:2x2", "spatial", "ds:2x2"])
def test_image_parts_exchange_halos(strategy: str) -> None:
    s = schedule(strategy, 4)
    forward, backward = kinds(s, Phase.FORWARD), kinds(s, Phase.BACKWARD)
    assert {name for name, kind in forward.items() if kind is Kind.HALO} == {"conv1", "conv2"}
    assert {name for name, kind in backward.items() if kind is Kind.HALO} == {"conv2"}
    assert {"conv1", "conv2"} <= set(kinds(s, Phase.GRADIENT))
    for c in s.comms:
        # rows above and below, two for a 5 x 5 kernel: two neighbors at most
        if c.kind is Kind.HALO:
            assert c.group is None and c.algorithm == "direct"
            assert max(len(r.sends) for rank in range(4) for r in exchange(c, rank).rounds) <= 2


def test_grid_groups() -> None:
    """Activations travel between neighboring ranks (the model group), gradients across (the data
    group); all ranks sum the loss.
    """
    s = schedule("grid:2x2", 4)
    groups = {Phase.GRADIENT: (1, 3), Phase.LOSS: (0, 1, 2, 3)}
    for c in s.comms:
        assert c.group is not None
        assert c.group.members(3) == groups.get(c.phase, (2, 3))
    assert set(kinds(s, Phase.GRADIENT)) == WEIGHTED


def test_one_weird_trick_changes_over_at_the_flatten() -> None:
    s = schedule("owt", 4)
    assert set(kinds(s, Phase.GRADIENT)) == {"conv1", "conv2"}
    assert kinds(s, Phase.FORWARD) == dict.fromkeys(("fc1", "fc2", "fc3", "loss"), Kind.ALLGATHER)
    assert kinds(s, Phase.BACKWARD) == dict.fromkeys(("fc1", "fc2", "fc3"), Kind.REDUCE_SCATTER)


@pytest.mark.parametrize("overlap", ["none", "gradient", "full"])
@pytest.mark.parametrize("strategy", whole_sums(4))
def test_communication_ends_before_its_result_is_needed(strategy: str, overlap: str) -> None:
    s = schedule(strategy, 4, overlap=overlap)
    assert [step.index for step in s.steps] == list(range(len(s.steps)))
    updates = {step.layer: step.index for step in s.steps if isinstance(step, Compute)
               and step.op is Op.UPDATE}
    assert set(updates) == WEIGHTED
    for c in s.comms:
        assert c.index < c.needed_by <= len(s.steps)
        if overlap == "none":
            assert c.needed_by == c.index + 1
        elif c.phase is Phase.GRADIENT:
            assert c.needed_by == updates[c.layer]
        if c.phase is Phase.FORWARD:
            user = s.steps[c.needed_by]
            assert isinstance(user,
                              Compute) and user.layer == c.layer and user.op in (
                                  Op.FORWARD, Op.BOUNDARY)
        if c.phase is Phase.BACKWARD and overlap == "full" and c.layer in WEIGHTED:
            beside = next(step for step in s.steps[c.index:] if isinstance(step, Compute))
            assert beside.op is Op.BACKWARD_WEIGHT and beside.layer == c.layer
            assert c.needed_by == beside.index + 1
    if overlap == "none":
        return
    split = [a.layer for a, b in pairwise(s.steps) if isinstance(b, Compute)
             and b.op is Op.BOUNDARY]
    halos = [c.layer for c in s.comms if c.kind is Kind.HALO and c.phase is Phase.FORWARD]
    assert split == (halos if overlap == "full" else [])


def test_inference_has_no_backward_pass_and_no_update() -> None:
    s = lower(NETWORK, make_plan(LENET, "domain:2x2", 4, 8), ring, training=False)
    assert {step.phase for step in s.steps} == {Phase.FORWARD, Phase.LOSS}
    assert kinds(s, Phase.FORWARD) == kinds(schedule("domain:2x2", 4), Phase.FORWARD)


def test_a_softmax_is_not_split_by_class() -> None:
    configs = {layer.name: Config(c=2) for layer in NETWORK.layers}
    with pytest.raises(InputError, match=r"'loss'.*softmax.*c=1"):
        lower(NETWORK, Plan(LENET, 2, 4, "own", configs), ring)


# -- any configurations ----------------------------------------------------------------------------
@cache
def lowered(seed: int, ranks: int, choose: Callable[[Comm], tuple[str, int]]) -> Schedule:
    """The schedule of a random plan: several tests look at it."""
    return lower(*random_plan(seed, ranks), choose)


def messages(step: Comm, ranks: int) -> tuple[dict[tuple[int, int], list[int]],
                                              dict[tuple[int, int], list[int]]]:
    """Sizes of all messages by (source, destination), in the order of their rounds: as sent, and as
    expected.
    """
    sends, recvs = defaultdict(list), defaultdict(list)
    for rank in range(ranks):
        ex = exchange(step, rank)
        for r in ex.rounds:
            for m in r.sends:
                sends[rank, ex.peers[m.peer]].append(m.stop - m.start)
            for m in r.recvs:
                recvs[ex.peers[m.peer], rank].append(m.stop - m.start)
    return sends, recvs


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_every_send_has_its_receive(seed: int, ranks: int) -> None:
    for choose in (ring, tree):
        for step in lowered(seed, ranks, choose).comms:
            sends, recvs = messages(step, ranks)
            assert sends == recvs, step.label
            assert all(source != destination and min(n) > 0
                       for (source, destination), n in sends.items())


def boxes_of(pieces: tuple[Piece | Kept, ...],
             spans: dict[tuple[int, int], int]) -> dict[int, list[Box]]:
    """Boxes of the wire's pieces by the peer whose message covers exactly their span."""
    out = defaultdict(list)
    for piece in pieces:
        if isinstance(piece, Piece) and (piece.start, piece.stop) in spans:
            out[spans[piece.start, piece.stop]].append(piece.box)
    return out


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_sender_and_receiver_agree_on_the_box(seed: int, ranks: int) -> None:
    for step in lowered(seed, ranks, ring).comms:
        if step.group is not None:
            continue
        sent: dict[tuple[int, int], list[Box]] = {}
        expected: dict[tuple[int, int], list[Box]] = {}
        for rank in range(ranks):
            ex = exchange(step, rank)
            for r in ex.rounds:
                out = boxes_of(ex.pack, {(m.start, m.stop): m.peer for m in r.sends})
                into = boxes_of(ex.unpack, {(m.start, m.stop): m.peer for m in r.recvs})
                assert sum(map(len, out.values())) == len(r.sends) and sum(
                    map(len, into.values())) == len(r.recvs)
                sent |= {(rank, peer): boxes for peer, boxes in out.items()}
                expected |= {(peer, rank): boxes for peer, boxes in into.items()}
        assert sent == expected, step.label


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_forward_bytes_are_the_data_that_ranks_lack(seed: int, ranks: int) -> None:
    """Every rank receives exactly the elements that it needs and does not own, once; so none where
    no step is made.
    """
    network, plan = random_plan(seed, ranks)
    lacking = {}
    for name, (edge,) in edges(network, plan).items():
        boxes = [(edge.owned.box(r), edge.needed.box(r)) for r in range(ranks)]
        common = [intersect(mine, target) for mine, target in boxes]
        lacking[name] = [items(target) - (items(both) if both else 0)
                         for (_, target), both in zip(boxes, common, strict=True)]
    for choose in (ring, tree):
        received = {name: [0] * ranks for name in lacking}
        for step in lower(network, plan, choose, training=False).comms:
            if step.phase is Phase.FORWARD and step.tensor.role is Role.INPUT:
                for (_, rank), sizes in messages(step, ranks)[1].items():
                    received[step.layer][rank] += sum(sizes)
        assert received == lacking


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_gradients_are_summed_over_all_ranks_with_the_weights(seed: int, ranks: int) -> None:
    """Those with the same channels of output and input: replicas compute alike, all others hold
    another part of the sum.
    """
    network, plan = random_plan(seed, ranks)
    totals = {c.layer: c for c in lowered(seed, ranks, tree).comms if c.phase is Phase.GRADIENT}
    for layer in network.weighted:
        config = plan.configs[layer.name]
        for rank in range(ranks):
            group = totals[layer.name].group if layer.name in totals else None
            members = group.members(rank) if group else (rank,)
            alike = [r for r in range(ranks)
                     if all(config.coordinate(a, r) == config.coordinate(a, rank)
                            for a in ("c", "k", "replicas"))]
            assert list(members) == alike


@pytest.mark.parametrize(("seed", "ranks"), RANDOM)
def test_partial_sums_are_added_over_all_input_channels(seed: int, ranks: int) -> None:
    """Forward every rank gets the total of its part of the outputs, or of all of them; backward it
    gets back what it computed of.
    """
    network, plan = random_plan(seed, ranks)
    steps = lowered(seed, ranks, tree).comms
    for layer in network.matmul_layers:
        config = plan.configs[layer.name]
        there = [s for s in steps if str(s.tensor) == f"{layer.name}.output"]
        back = [s for s in steps if str(s.tensor) == f"{layer.name}.output.gradient"]
        assert (len(there), len(back)) == ((1, int(config.scatter)) if config.k > 1 else (0, 0))
        for step in there + back:
            assert step.group is not None and step.group.size == config.k
            assert step.reduce == (step in there)
        for step in there:
            assert step.kind is (Kind.REDUCE_SCATTER if config.scatter
                                 else Kind.ALLREDUCE) and step.group is not None
            for rank in range(ranks):
                members = step.group.members(rank)
                assert all(config.coordinate("k", m) == i for i, m in enumerate(members))
                assert {step.source_box(m) for m in members} == {step.source_box(rank)}
                assert sum(items(step.destination_box(m))
                           for m in members) == items(step.source_box(rank)) * (
                               1 if config.scatter else config.k)
