"""An algorithm that is registered with its rounds alone is planned, priced, simulated, counted, and
written to plan files; `tests/mpi/test_added_algorithm.py` executes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.price_family import price_family
from hpcpar.errors import InputError
from hpcpar.extend import collective_algorithm
from hpcpar.machine import files
from hpcpar.plan.plan import (
    COLLECTIVES,
    NetworkSpec,
    Plan,
    from_json,
    load,
    make_plan,
    save,
    to_json,
)
from hpcpar.prediction.price import price
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.messages import counts
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import Phase
from hpcpar.simulation.simulate import Simulator
from tests.added import Pairwise, Star, added
from tests.unit.closed import price as closed_price

SPEC = NetworkSpec("lenet5", (1, 16, 16), 10)
P100 = files.load("p100x4x4")


def plan_of(ranks: int, collectives: str) -> Plan:
    return make_plan(SPEC, "data", ranks, 4 * ranks, machine=P100,
                     collectives=collectives)


@pytest.fixture
def star() -> Iterator[None]:
    with added(Star):
        yield


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_its_price_is_its_simulation_and_its_bytes_are_its_messages(star: None, ranks: int) -> None:
    plan, network = plan_of(ranks, "star"), SPEC.build()
    schedule = schedule_for(network, plan)
    assert {c.algorithm for c in schedule.comms} == ({"star"} if ranks > 1 else set())
    for step in schedule.comms:
        found = sent(step, ranks)
        each = [counts(step, rank) for rank in range(ranks)]
        assert found.n_bytes.tolist() == [c.sent_bytes for c in each]
        assert found.messages.tolist() == [c.messages for c in each]
    exact, closed = price(network, plan, P100), closed_price(network, plan, P100)
    assert exact.iteration_s == Simulator(network, plan, P100).play().mean_s
    assert exact.communication_bytes == closed.communication_bytes
    assert exact.memory_bytes <= price_family(network, plan, P100).memory.total_bytes


def test_the_time_of_a_star(star: None) -> None:
    """Its hub receives from the others one by one, then sends to them."""
    level, plan = P100.levels[0], plan_of(4, "star")
    machine = replace(P100, add_s_per_byte=0.0)
    gradients = [s for s in price(SPEC.build(), plan, machine).steps
                 if s.phase == Phase.GRADIENT.value and s.is_comm]
    for step in gradients:
        n = step.sent_bytes / 3  # the hub's messages
        expected = 2 * 3 * (level.latency_s(n) + n * level.beta_s_per_byte)
        assert step.seconds == pytest.approx(expected, rel=1e-12)


def test_the_cost_model_chooses_it_where_it_is_fastest() -> None:
    """Two latencies, where doubling among three members takes three."""
    with added(Pairwise):
        few, many = (schedule_for(SPEC.build(), plan_of(ranks, "auto")) for ranks in (3, 65))
    assert "pairwise" in {c.algorithm for c in few.comms if c.group}
    assert "pairwise" not in {c.algorithm for c in many.comms if c.group}


def test_a_plan_file_names_it(star: None, tmp_path: Path) -> None:
    plan, path = plan_of(3, "star"), str(tmp_path / "plan.json")
    save(plan, path)
    assert load(path).collectives == "star"


def test_a_plan_of_an_unknown_one_is_refused() -> None:
    data = to_json(plan_of(3, "ring")) | {"collectives": "star"}
    with pytest.raises(InputError, match=r"the plan: unknown collectives 'star'.*known: auto, "):
        from_json(data, "the plan")


def test_commands_load_the_module_before_parsing_options(tmp_path: Path) -> None:
    module = tmp_path / "my_star.py"
    module.write_text("from hpcpar.extend import collective_algorithm\n"
                      "from tests.added import Star\n\ncollective_algorithm(Star)\n")
    words = ["predict", "--network", "lenet5", "--ranks", "3", "--batch", "48",
             "--strategy", "data", "--machine", "local", "--collectives", "star"]
    assert main(words) == 2
    try:
        assert main([*words, "--layers", str(module)]) == 0
    finally:
        del ALGORITHMS["star"], COLLECTIVES["star"]


def test_a_name_is_taken_once(star: None) -> None:
    class Other(Star):
        """The algorithm of this module."""

    with pytest.raises(InputError, match=r"algorithm 'star' is already defined in tests\.added"):
        collective_algorithm(Other)
    with pytest.raises(InputError,
                       match=r"algorithm 'tree' is already defined in hpcpar\.plan\.plan"):
        collective_algorithm(type("Tree", (Star,), {"name": "tree"}))
    collective_algorithm(Star)  # as in a notebook's cell that runs again


def test_other_collectives_stay_rings(star: None) -> None:
    """The cost model chooses the algorithm of all other collectives."""
    plan = make_plan(SPEC, "grid:2x2", 4, 8, machine=P100, collectives="star")
    found = {c.kind.value: c.algorithm for c in schedule_for(SPEC.build(), plan).comms if c.group}
    assert found["allreduce"] == "star" and len(set(found.values())) > 1
    assert np.isfinite(price(SPEC.build(), plan, P100).iteration_s)
