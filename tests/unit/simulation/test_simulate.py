"""Plans played on all ranks: against predictions, and with what predictions do not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import parse
from hpcpar.prediction.price import price as exact_price
from hpcpar.schedule.sent_bytes import sent
from hpcpar.search.auto import strategies_to_try
from hpcpar.simulation.noise import QUIET, Noise, slow_ranks
from hpcpar.simulation.simulate import Simulation, Simulator
from tests.strategies import named
from tests.unit.closed import price

LOCAL = files.load("local")
#: Half of a communication cannot be hidden, and the other half is slow while ranks compute.
DRIVEN = replace(LOCAL, overlap=0.5, progress=0.4)
MEASURED = replace(DRIVEN, collectives=tuple(
    Factors("shared memory", kind, algorithm, (1e3, 1e6), (1.5, 0.8))
    for kind, algorithm in (("allreduce", "ring"), ("allreduce", "halving"), ("halo", "direct"),
                            ("redistribute", "direct"), ("allgather", "ring"))))
#: Channels, classes and pixels that 2, 4 and 8 ranks divide.
EVEN = NetworkSpec("vgg16", (3, 32, 32), 16)
SMALL = NetworkSpec("lenet5", (1, 16, 16), 10)
RESNET = NetworkSpec("resnet50", (3, 64, 64), 16)


def plan_of(spec: NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine = LOCAL,
            **options: object) -> Plan:
    return make_plan(spec, strategy, ranks, batch, machine=machine, **options)


def play(plan: Plan, machine: Machine, noise: Noise = QUIET, repeats: int = 1) -> Simulation:
    return Simulator(plan.network.build(), plan, machine).play(noise, repeats)


def off(plan: Plan, machine: Machine) -> float:
    """Simulated time over the time of the closed forms, less one."""
    predicted = price(plan.network.build(), plan, machine).total_s
    return play(plan, machine).mean_s / predicted - 1


def alike(strategy: str) -> bool:
    """All ranks do the same at the same time: no part at the edge of an image, no root, no stage
    that others wait for.
    """
    return parse(strategy)[0] in ("data", "filter", "channel", "grid", "grid-fc", "owt", "owt-c")


@pytest.mark.parametrize(("spec", "ranks", "machine"), [
    (EVEN, 4, LOCAL), (EVEN, 4, DRIVEN), (EVEN, 4, MEASURED), (RESNET, 8, LOCAL)])
def test_the_simulation_without_noise_equals_the_prediction(spec: NetworkSpec, ranks: int,
                                                            machine: Machine) -> None:
    """To rounding where all ranks do the same; else to half a percent."""
    for strategy in named(ranks):
        plan = plan_of(spec, strategy, ranks, 64, machine)
        assert abs(off(plan, machine)) < (1e-9 if alike(strategy) else 5e-3), strategy


@pytest.mark.parametrize("collectives", ["ring", "tree", "halving", "mpi"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_algorithm_takes_its_predicted_time(collectives: str, ranks: int) -> None:
    """Sizes that the ranks do not divide differ by an item per message."""
    for strategy in ("data", "filter", "owt"):
        plan = plan_of(EVEN, strategy, ranks, 24, collectives=collectives)
        assert abs(off(plan, LOCAL)) < (1e-9 if ranks != 3 else 2e-2), strategy


@pytest.mark.parametrize("ranks", [3, 5, 6, 8, 12, 24, 48])
@pytest.mark.parametrize("name", ["p100x4x4", "h100x8"])
def test_groups_that_span_nodes_take_their_predicted_time(name: str, ranks: int) -> None:
    """Nodes of 4 and of 8; links are not shared.

    Slowest links are priced in every round of a ring, though a sum of fewer items than members (the
    loss) crosses each link now and then; and two messages in every round of halving around 5
    members, though they do not all fall to one member.
    """
    machine = files.load(name)
    apart = replace(machine, levels=tuple(replace(x, links=0.0) for x in machine.levels))
    for options, most in [
            ({"collectives": "tree"}, 0.003), ({"collectives": "halving"}, 0.05),
            ({"collectives": "ring"}, 0.1), ({"synchronization": "sharded"}, 0.003),
            ({"synchronization": "server"}, 0.004)]:
        plan = plan_of(SMALL, "data", ranks, 2 * ranks, apart, **options)
        over = 1 / (1 + off(plan, apart)) - 1
        assert -1e-3 < over < most, (options, over)


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8, 12, 24, 48])
@pytest.mark.parametrize("name", ["p100x4x4", "h100x8"])
def test_predictions_on_few_ranks_equal_the_simulation(name: str, ranks: int) -> None:
    """Every strategy, algorithm and synchronization, in nodes that are full or not."""
    machine = files.load(name)
    every: list[dict[str, object]] = [
        {"collectives": "ring"}, {"collectives": "tree"}, {"collectives": "halving"},
        {"collectives": "mpi"}, {"synchronization": "sharded"}, {"synchronization": "server"}, {}]
    for number, strategy in enumerate(strategies_to_try(SMALL.build(), ranks, machine)):
        plan = plan_of(SMALL, strategy, ranks, 2 * ranks, machine, **every[number % len(every)])
        predicted = exact_price(plan.network.build(), plan, machine)
        assert predicted.iteration_s == pytest.approx(play(plan, machine).mean_s, rel=1e-9)
        parts_s = predicted.compute_s + predicted.exposed_communication_s + predicted.bubble_s
        assert predicted.iteration_s == pytest.approx(parts_s, rel=1e-9), strategy


@pytest.mark.parametrize("ranks", [64, 100, 129, 256, 384, 512])
@pytest.mark.parametrize("options", [{"collectives": "ring"}, {"collectives": "tree"},
                                     {"collectives": "halving"}, {}], ids=str)
def test_predictions_on_many_ranks_equal_the_simulation(options: dict[str, str],
                                                        ranks: int) -> None:
    machine = files.load("p100x4x4")
    for strategy in ("data", "filter", "spatial"):
        plan = plan_of(SMALL, strategy, ranks, 2 * ranks, machine, **options)
        predicted = exact_price(plan.network.build(), plan, machine)
        assert predicted.iteration_s == pytest.approx(play(plan, machine).mean_s, rel=1e-9)


def test_a_stage_over_two_nodes_sums_over_their_link() -> None:
    """Ranks 3 to 5, in nodes of four."""
    machine = files.load("p100x4x4")
    plan = plan_of(SMALL, "pipeline:2x3", 6, 12, machine)
    predicted = exact_price(plan.network.build(), plan, machine)
    level = [level.name for level in machine.levels]
    sums = [step.stream for step in predicted.steps if step.label.endswith("allreduce")]
    assert set(sums) == set(level)  # the first stage is inside a node


@pytest.mark.parametrize("overlap", ["none", "gradient", "full"])
@pytest.mark.parametrize("synchronization", ["allreduce", "sharded", "server"])
def test_every_overlap_and_synchronization(overlap: str, synchronization: str) -> None:
    """A server waits for nobody but all wait for it; shards of weights with a bias are uneven."""
    plan = plan_of(EVEN, "data", 4, 64, overlap=overlap, synchronization=synchronization)
    assert abs(off(plan, DRIVEN)) < (1e-9 if synchronization == "allreduce" else 5e-3)


def test_nodes_and_racks_where_no_links_are_shared() -> None:
    """Hierarchical collectives of 64 ranks in nodes of 4: the same rounds over the same levels."""
    machine, spec = files.load("p100x4x4"), NetworkSpec("vgg16", (3, 32, 32), 64)
    apart = replace(machine, levels=tuple(replace(x, links=0.0) for x in machine.levels))
    for strategy in ("data", "grid:4x16", "filter"):
        plan = plan_of(spec, strategy, 64, 64, apart)
        assert -0.02 < off(plan, apart) < 1e-9, (strategy, off(plan, apart))


def test_ranks_with_smaller_parts_wait_for_the_others() -> None:
    """Seven samples on four ranks: rank 0 has one, the others two."""
    plan = plan_of(EVEN, "data", 4, 7)
    found = play(plan, LOCAL)
    assert found.compute_s[0] < 0.8 * found.compute_s[1]
    assert found.exposed_s[0] > found.exposed_s[1]
    total = found.compute_s + found.exposed_s + found.waiting_s
    np.testing.assert_allclose(total, found.mean_s)
    assert abs(off(plan, LOCAL)) < 1e-3


def test_a_slow_rank_holds_all_others_up() -> None:
    plan = plan_of(EVEN, "data", 4, 64)
    quiet = play(plan, LOCAL)
    slow = play(plan, LOCAL, Noise(slow=slow_ranks(LOCAL, 4, {"rank2": 2.0})))
    assert slow.compute_s.argmax() == 2
    assert slow.compute_s[2] == pytest.approx(2 * quiet.compute_s[2])
    assert slow.mean_s == pytest.approx(quiet.mean_s + quiet.compute_s[2], rel=0.02)
    assert slow.exposed_s[2] < slow.exposed_s[0]


def test_jitter_costs_more_where_ranks_wait_more_often() -> None:
    """`data` waits once per iteration, `filter` in every layer."""
    lost = {}
    for strategy in ("data", "filter"):
        plan = plan_of(EVEN, strategy, 8, 64)
        quiet = play(plan, LOCAL).mean_s
        noisy = play(plan, LOCAL, Noise(0.2, seed=3), 40)
        assert noisy.iteration_s.shape == (40,)
        assert len(set(noisy.iteration_s.tolist())) == 40
        lost[strategy] = noisy.mean_s / quiet - 1
    assert 0 < lost["data"] < lost["filter"]


def test_jitter_keeps_a_steps_mean_and_follows_the_seed() -> None:
    plan = plan_of(EVEN, "data", 4, 64)
    quiet = play(plan, LOCAL)
    noisy, again, other = (play(plan, LOCAL, Noise(0.1, seed=seed), 60) for seed in (1, 1, 2))
    np.testing.assert_array_equal(noisy.iteration_s, again.iteration_s)
    assert not np.array_equal(noisy.iteration_s, other.iteration_s)
    np.testing.assert_allclose(noisy.compute_s, quiet.compute_s, rtol=0.01)


@pytest.mark.parametrize(("unit", "told"), [
    ("rank8", "rank7"), ("node2", "node1"), ("node", "node1"), ("rack0", "node1")])
def test_an_unknown_unit_is_refused(unit: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        slow_ranks(files.load("p100x4x4"), 8, {unit: 1.5})


def test_a_slow_node_slows_all_of_its_ranks() -> None:
    factors = slow_ranks(files.load("p100x4x4"), 8, {"node1": 1.5, "rank7": 2.0})
    assert factors is not None
    assert factors.tolist() == [1, 1, 1, 1, 1.5, 1.5, 1.5, 3]


def test_all_messages_of_1024_ranks_match_the_schedule() -> None:
    """Every send meets its receive (else playing them fails), and every rank sends the predicted
    bytes.
    """
    machine = files.load("abci-v100")
    plan = plan_of(NetworkSpec("alexnet", (3, 227, 227), 1000), "grid-fc:4x256", 1024, 1024,
                   machine)
    network = plan.network.build()
    messages, sent_bytes = Simulator(network, plan, machine).traffic()
    steps = schedule_for(network, plan).comms
    assert steps
    for step in steps:
        expected = sent(step, 1024)
        np.testing.assert_array_equal(messages[step.index], expected.messages)
        np.testing.assert_array_equal(sent_bytes[step.index], expected.n_bytes)
