"""Collective costs against the rounds, choices of algorithms, work, memory, and whole prices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hpcpar.cost.choose import LEAST_PIECE_BYTES, MOST_SEGMENTS, cheapest, schedule_for
from hpcpar.cost.collectives import collective_s, doubling_rounds, paper_s, sent, summing_rounds
from hpcpar.cost.compute import compute_s, roofline_s
from hpcpar.cost.flows import flow, flows
from hpcpar.cost.memory import memory
from hpcpar.cost.price import price
from hpcpar.cost.traffic import WALKED, representatives, sent_by
from hpcpar.cost.work import Workload, works
from hpcpar.machine import files
from hpcpar.machine.model import Level
from hpcpar.network.layers import Conv2d
from hpcpar.plan.boxes import block
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import named
from hpcpar.schedule.exchange import counts
from hpcpar.schedule.rounds import ALGORITHMS, Round, collective
from hpcpar.schedule.steps import Compute, Kind, Op
from hpcpar.search import auto

LOCAL = files.load("local")
CORI = files.load("cori-knl")
SMALL = NetworkSpec("alexnet", (3, 67, 67), 20)
CASES = [(kind, name) for kind, names in ALGORITHMS.items() for name in names]


def plan_of(strategy: str, ranks: int, batch: int, spec: NetworkSpec = SMALL, machine: files.Machine = LOCAL, **options: str) -> Plan:
    return make_plan(spec, strategy, ranks, batch, machine=files.to_dict(machine), **options)


def walk(kind: Kind, name: str, sizes: tuple[int, ...], me: int, segments: int) -> tuple[int, int]:
    rounds = collective(kind, name, sizes, me, segments)
    messages = [m for r in rounds for m in r.sends]
    return len(messages), sum(m.stop - m.start for m in messages)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("p", range(1, 10))
def test_sent_equals_the_walked_rounds(kind: Kind, name: str, p: int) -> None:
    for n in (0, 1, p - 1, 3 * p, 3 * p + 1, 50):
        for segments in (1, 3) if name == "ring" else (1,):
            sizes = (n,) * p if kind is Kind.ALLREDUCE else tuple(b - a for a, b in (block(n, p, i) for i in range(p)))
            for me in range(p):
                assert sent(kind, name, sizes, me, segments) == walk(kind, name, sizes, me, segments)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("p", range(2, 10))
def test_seconds_count_the_rounds_and_their_bytes(kind: Kind, name: str, p: int) -> None:
    """With alpha alone a collective costs its rounds, with beta alone the bytes of its busiest member, with gamma alone its sums."""
    n = 24 * p
    sizes = (n,) * p if kind is Kind.ALLREDUCE else (24,) * p
    every = [collective(kind, name, sizes, me, 1) for me in range(p)]
    alpha, beta, none = Level("", 0, 1.0, 0.0), Level("", 0, 0.0, 1.0), Level("", 0, 0.0, 0.0)
    busiest = max(every, key=len)

    def count(rounds: list[Round], summing: bool) -> int:
        taken = [r for r in rounds if r.reduce] if summing else rounds
        return sum(max(sum(m.stop - m.start for m in side) for side in (r.sends, r.recvs)) for r in taken)

    assert collective_s(kind, name, p, n, 1, alpha) == len(busiest)
    assert collective_s(kind, name, p, n, 1, beta) == pytest.approx(count(busiest, False))
    assert collective_s(kind, name, p, n, 1, none, 1.0) == pytest.approx(max(count(r, True) for r in every))
    if name == "doubling":
        assert doubling_rounds(p) == len(busiest) and summing_rounds(p) == max(sum(r.reduce for r in m) for m in every)


def test_ring_formulas() -> None:
    level = Level("", 0, 3e-6, 2e-9)
    assert collective_s(Kind.ALLREDUCE, "ring", 8, 1e6, 1, level) == pytest.approx(2 * 7 * (3e-6 + 1e6 / 8 * 2e-9))
    assert collective_s(Kind.ALLREDUCE, "ring", 8, 1e6, 4, level) == pytest.approx(2 * 7 * (4 * 3e-6 + 1e6 / 8 * 2e-9))
    assert collective_s(Kind.ALLGATHER, "ring", 8, 1e6, 1, level) == pytest.approx(7 * (3e-6 + 1e6 / 8 * 2e-9))
    assert paper_s(Kind.ALLGATHER, 5, 1e6, level) == pytest.approx(3 * 3e-6 + 4 / 5 * 1e6 * 2e-9)
    assert paper_s(Kind.ALLREDUCE, 5, 1e6, level) == 2 * paper_s(Kind.ALLGATHER, 5, 1e6, level)
    assert collective_s(Kind.ALLREDUCE, "ring", 1, 1e6, 1, level) == paper_s(Kind.ALLREDUCE, 1, 1e6, level) == 0
    tree = collective_s(Kind.ALLREDUCE, "doubling", 8, 100, 1, level)
    assert collective_s(Kind.ALLREDUCE, "mpi", 8, 100, 1, level) == tree < collective_s(Kind.ALLREDUCE, "ring", 8, 100, 1, level)


def test_segments_hide_sums() -> None:
    level = Level("", 0, 1e-6, 1e-9)
    one = collective_s(Kind.ALLREDUCE, "ring", 4, 6.4e7, 1, level, 5e-10)
    four = collective_s(Kind.ALLREDUCE, "ring", 4, 6.4e7, 4, level, 5e-10)
    bare = collective_s(Kind.ALLREDUCE, "ring", 4, 6.4e7, 4, level, 0.0)
    assert bare < four < one


def test_choices() -> None:
    level = Level("", 0, 2e-6, 1e-9)
    assert cheapest(Kind.ALLREDUCE, 8, 16, level, 1e-10, ("ring", "doubling")) == ("doubling", 1)
    name, segments = cheapest(Kind.ALLREDUCE, 8, 10**9, level, 1e-9, ("ring", "doubling"))
    assert name == "ring" and segments == MOST_SEGMENTS
    for n in (10**5, 10**6, 10**7):
        _, segments = cheapest(Kind.ALLREDUCE, 8, n, level, 1e-9, ("ring",))
        assert segments == 1 or n / 8 / segments >= LEAST_PIECE_BYTES
    network = SMALL.build()
    for collectives, allowed in (("ring", {"ring"}), ("tree", {"doubling", "bruck"}), ("mpi", {"mpi"})):
        plan = plan_of("grid:2x2", 4, 8, collectives=collectives)
        assert {s.algorithm for s in schedule_for(network, plan).comms if s.group} == allowed


@pytest.mark.parametrize("ranks", [1, 3, 4, 6])
def test_sent_bytes_equal_the_exchanges(ranks: int) -> None:
    """On up to 64 ranks the price's messages and bytes are those of the executed exchanges, rank by rank."""
    network = SMALL.build()
    every = list(range(ranks))
    for strategy in named(ranks):
        for step in schedule_for(network, plan_of(strategy, ranks, 7)).comms:
            exact = [counts(step, rank) for rank in every]
            assert [(s.messages, s.bytes) for s in sent_by(step, every)] == [(c.messages, c.sent_bytes) for c in exact], step.label
            if step.group is None:
                assert flows(step, every) == [flow(step, rank) for rank in every]


def test_representatives() -> None:
    assert representatives(plan_of("data", 64, 64)) == list(range(64))
    for strategy, ranks in (("data", 65), ("domain:8x512", 4096), ("grid:7x13", 91), ("spatial", 4096)):
        chosen = representatives(plan_of(strategy, ranks, 512, NetworkSpec("alexnet", (3, 227, 227), 1000)))
        assert len(set(chosen)) == len(chosen) <= WALKED
        assert {0, ranks - 1} <= set(chosen) and max(chosen) < ranks


@pytest.mark.parametrize("strategy", ["data", "grid:2x3", "spatial", "domain:6x1", "owt"])
def test_work_keys(strategy: str) -> None:
    """The distinct work is all that the schedule asks for, whatever the overlap, and a calibrated time is found again."""
    network = SMALL.build()
    plan = plan_of(strategy, 6, 12, overlap="full")
    listed = works(network, plan)
    assert len({w.key for w in listed}) == len(listed) and all(w.fraction == 1.0 for w in listed)
    load = Workload(network, plan)
    steps = [s for s in schedule_for(network, plan).steps if isinstance(s, Compute)]
    assert {load.of(s).key for s in steps} == {w.key for w in listed}
    measured = replace(LOCAL, compute={w.key: 1.0 for w in listed})
    for s in steps:
        work = load.of(s)
        assert compute_s(measured, work) == work.fraction
        assert compute_s(LOCAL, work) == roofline_s(LOCAL, work) >= 0
    for layer in network.layers:
        parts = [load.of(s) for s in steps if s.layer == layer.name and s.op in (Op.INTERIOR, Op.BOUNDARY)]
        assert sum(w.fraction for w in parts) == pytest.approx(1.0 if parts else 0.0)


def test_work_of_one_rank_is_the_networks() -> None:
    network = SMALL.build()
    listed = works(network, plan_of("data", 1, 3))
    forward = sum(w.flops for w in listed if w.op == "forward" and w.kind in ("conv2d", "linear"))
    assert forward == pytest.approx(3 * sum(layer.forward_flops(network.input_shape(layer)) for layer in network.weighted))
    conv = next(w for w in listed if w.kind == "conv2d")
    assert conv.key == "conv2d.forward x=3x3x67x67 y=3x96x15x15 k=11x11 s=4x4 d=1x1 g=1 float32"
    assert next(layer for layer in network.layers if isinstance(layer, Conv2d)).kernel == (11, 11)


def test_cori_trains_alexnet_in_the_papers_time() -> None:
    """1.2 million images at 4 images a rank: 12.2 to 12.6 thousand seconds on one KNL."""
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    p = price(spec.build(), plan_of("data", 512, 2048, spec, CORI, overlap="none"), CORI, samples=1_200_000)
    assert p.epoch_s is not None
    assert 12_200 < p.compute_s * 1_200_000 / 2048 * 512 < 12_600
    assert p.epoch_s == pytest.approx(p.iteration_s * 1_200_000 / 2048)


def test_published_total_speedups() -> None:
    """Gholami et al., P = 512, B = 2048: 2.1x (best grid for all layers) and 2.5x (in the fully connected ones) over pure batch."""
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    network = spec.build()

    def fastest(pattern: str) -> float:
        found = [auto.price_named(network, spec, s, 512, 2048, CORI, overlap="none") for s in auto.expand(pattern, 512)]
        return min(c.prediction.iteration_s for c in found)

    data = fastest("data")
    assert 2.0 < data / fastest("grid:*") < 2.6
    assert 2.3 < data / fastest("grid-fc:*") < 3.1


def test_memory() -> None:
    network = SMALL.build()
    plan = plan_of("data", 2, 4)
    m = memory(network, plan, schedule_for(network, plan))
    assert m.weights_bytes == 3 * 4 * network.parameters
    assert m.needed_bytes == 0 and m.wire_bytes == 0
    outputs = sum(math.prod(shape) for shape in network.shapes.values())
    assert m.activations_bytes == 4 * 2 * (2 * outputs - math.prod(network.image_shape))
    split = plan_of("filter", 2, 4)
    half = memory(network, split, schedule_for(network, split))
    assert half.weights_bytes < 0.55 * m.weights_bytes and half.needed_bytes > 0 and half.wire_bytes > 0


def test_prediction_contract() -> None:
    network = SMALL.build()
    p = price(network, plan_of("grid:2x2", 4, 8), LOCAL, samples=800)
    data = p.to_json(steps=True)
    for name in ("network", "machine", "strategy", "ranks", "batch", "iteration_s", "epoch_s", "compute_s", "communication_s",
                 "exposed_communication_s", "communication_bytes", "memory_bytes", "fits", "layers", "phases", "steps"):
        assert name in data
    assert set(data["layers"][0]["config"]) == {"n", "c", "h", "w", "d", "k"}
    assert sum(layer["compute_s"] for layer in data["layers"]) == pytest.approx(p.compute_s)
    assert sum(layer["communication_s"] for layer in data["layers"]) == pytest.approx(p.communication_s)
    assert sum(phase["compute_s"] for phase in data["phases"].values()) == pytest.approx(p.compute_s)
    assert p.epoch_s == pytest.approx(100 * p.iteration_s)
    tiny = replace(LOCAL, device=replace(LOCAL.device, memory_bytes=1000))
    assert not price(network, plan_of("data", 2, 4), tiny).fits


def test_auto_takes_the_fastest_that_fits() -> None:
    spec = NetworkSpec("lenet5", (1, 28, 28), 10)
    network = spec.build()
    found = auto.best(network, spec, 6, 60, LOCAL)
    times = [c.prediction.iteration_s for c in found]
    assert times == sorted(times) and len(found) == len(named(6))
    least = min(c.prediction.memory_bytes for c in found)
    small = replace(LOCAL, device=replace(LOCAL.device, memory_bytes=least))
    assert [c.prediction.fits for c in auto.best(network, spec, 6, 60, small)][:2] == [True, False]
    assert auto.expand("grid:*", 6) == ["grid:1x6", "grid:2x3", "grid:3x2", "grid:6x1"]
    assert auto.expand("ds:*", 4) == ["ds:4x1", "ds:2x2", "ds:1x4"]
    assert all(c.plan.configs["fc1"].n <= 2 for c in auto.best(network, spec, 4, 2, LOCAL))
