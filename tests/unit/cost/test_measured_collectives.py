"""Measured times of collectives in a machine file, and in prices; and what no price depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Machine
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Kind

PLAIN = files.load("p100x4x4")
KNOWN = Factors("network", "allreduce", "ring", (1e3, 1e6), (3.0, 2.0))
MACHINE = replace(PLAIN, collectives=(KNOWN,))


def seconds(machine: Machine, kind: Kind, algorithm: str, n: Any, axis: MeshAxis) -> Any:
    return collective_s(kind, algorithm, n, 1, route(NetworkModel(machine), [axis], 16))


@pytest.mark.parametrize(("n", "factor"),
                         [(1e2, 3.0), (1e3, 3.0), (10**4.5, 2.5), (1e6, 2.0), (1e9, 2.0)])
def test_a_measured_collective_sets_the_price(n: float, factor: float) -> None:
    across, inside = MeshAxis(4, 4), MeshAxis(1, 4)
    assert seconds(MACHINE, Kind.ALLREDUCE, "ring", n, across) == pytest.approx(
        factor * seconds(PLAIN, Kind.ALLREDUCE, "ring", n, across))
    for kind, name, axis in ((Kind.ALLREDUCE, "ring", inside),
                              (Kind.ALLREDUCE, "doubling", across),
                              (Kind.ALLGATHER, "ring", across),
                              (Kind.ALLREDUCE, "mpi", across)):
        assert seconds(MACHINE, kind, name, n,
                       axis) == seconds(PLAIN, kind, name, n, axis), (kind, name)


@pytest.mark.parametrize("kind", ["halo", "redistribute"])
def test_measured_direct_movements_set_the_price(kind: str) -> None:
    """Those of a level alone, by what the busiest rank moves; other levels and kinds stay."""
    plan = make_plan(NetworkSpec("lenet5", (1, 28, 28), 10), "spatial", 4, 16,
                     machine=PLAIN)
    plan = replace(plan, overlap="none")
    network = plan.network.build()
    plain = price(network, plan, PLAIN).steps
    slow = {level: price(network, plan,
                         replace(PLAIN,
                                 collectives=(Factors(level, kind, "direct", (1e3, 1e6),
                                                      (3.0, 3.0)),))).steps
            for level in (PLAIN.levels[0].name, "network")}
    there = [step.is_comm and f".{kind}" in step.label for step in plain]
    assert any(there)
    for before, inside, across, here in zip(plain, *slow.values(), there, strict=True):
        assert inside.seconds == pytest.approx(before.seconds * (3.0 if here else 1.0), rel=1e-12)
        assert across.seconds == before.seconds


def test_cases_of_a_family_have_their_single_prices() -> None:
    axis = MeshAxis(np.array([1, 4]), np.array([4, 4]))
    both = seconds(MACHINE, Kind.ALLREDUCE, "ring", np.array([2e3, 2e3]), axis)
    alone = [seconds(MACHINE, Kind.ALLREDUCE, "ring", 2e3, MeshAxis(s, 4)) for s in (1, 4)]
    assert both == pytest.approx(alone)


def test_a_slow_algorithm_is_not_chosen() -> None:
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)

    def names(machine: Machine) -> set[str]:
        plan = make_plan(spec, "data", 16, 64, machine=machine)
        network = plan.network.build()
        from hpcpar.schedule.lower import outline

        found = outline(network, plan, chooser(NetworkModel(machine), plan))
        return {str(step.algorithm) for step in found.steps if hasattr(step, "algorithm")
                and step.phase.value == "gradient"}

    slow = replace(PLAIN, collectives=(Factors("network", "allreduce", "ring", (1.0,), (1e6,)),))
    assert "ring" in names(PLAIN) and "ring" not in names(slow)


def test_file_keeps_collectives_and_quality(tmp_path: Path) -> None:
    machine = replace(MACHINE,
                      quality={"rounds": 7,
                               "links": [{"level": "network", "alpha_s": [1e-6, 2e-6]}]})
    path = str(tmp_path / "m.toml")
    files.save(machine, path)
    assert files.load(path) == machine
    plain = files.to_dict(PLAIN)  # a preset tells its device, and nothing measured
    assert plain["quality"] == {"device": "gpu", "fitted_to": "VGG-16 and AlexNet"}
    assert "collectives" not in plain


@pytest.mark.parametrize("change", [
    {"bytes": []}, {"bytes": [1.0]}, {"bytes": [2.0, 1.0]}, {"factors": [0.0, 1.0]},
    {"factors": [1.0, float("nan")]}, {"size": 3},
    {"level": 3},
])
def test_bad_collectives_are_named(change: dict[str, Any]) -> None:
    entry = {"level": "network", "kind": "allreduce", "algorithm": "ring", "bytes": [1.0, 2.0],
             "factors": [1.0, 2.0]}
    data = files.to_dict(PLAIN)
    files.from_dict({**data, "collectives": [entry]})
    with pytest.raises(InputError, match="'collectives', entry 1"):
        files.from_dict({**data, "collectives": [{**entry, **change}]}, "file x")


def test_no_price_depends_on_the_quality() -> None:
    plan = make_plan(NetworkSpec("lenet5", (1, 28, 28), 10), "data", 4, 16,
                     machine=PLAIN)
    sure = replace(PLAIN, quality={"rounds": 1})
    network = plan.network.build()
    assert price(network, plan, PLAIN).iteration_s == price(network, plan, sure).iteration_s
