"""Plans of one search share the model of the network, and the movements on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.cost.network import contention
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import network as builtin
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import auto, candidates
from hpcpar.simulation import simulate
from hpcpar.simulation.movement import Movement


def found(preset: str, **options: Any) -> list[candidates.Candidate]:
    net = builtin("alexnet")
    spec = NetworkSpec("alexnet", net.image_shape, net.classes)
    return auto.best(net, spec, 4, 64, files.load(preset), bucket_bytes=None, **options)


@pytest.mark.parametrize(("contention_phi", "models"), [(None, 1), (2.0, 2)])
def test_a_search_makes_one_model_of_each_machine(contention_phi: float | None, models: int,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """With a given contention, the machine without it chooses the algorithms."""
    made: list[Machine] = []
    init = contention.NetworkModel.__init__

    def counted(self: contention.NetworkModel, machine: Machine) -> None:
        made.append(machine)
        init(self, machine)

    monkeypatch.setattr(contention.NetworkModel, "__init__", counted)
    best = found("p100x4x4", contention=contention_phi)
    assert best[0].prediction.iteration_s > 0
    assert len(made) == len(set(made)) == models
    # another search starts anew
    found("p100x4x4", contention=contention_phi)
    assert len(made) == 2 * models


def test_a_search_simulates_equal_movements_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traits: list[object] = []

    class Counted(Movement):
        def __init__(self, step: Any, *rest: Any) -> None:
            traits.append((step.pattern, step.source, step.destination, step.item_bytes,
                           step.algorithm, step.segments, step.inner, step.root, rest[-2:]))
            super().__init__(step, *rest)

    monkeypatch.setattr(simulate, "Movement", Counted)
    found("p100x4x4")
    assert len(traits) == len(set(traits)) > 0


def test_memory_is_checked_without_a_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that was priced in a family only, on a device that holds less than its bound."""
    slowest = found("k20x8")[-1]
    assert slowest.exact_costs is None and "costs" not in vars(slowest)
    limit_bytes = slowest.task.machine.device.memory_bytes
    fits = replace(slowest).memory_bytes <= limit_bytes
    monkeypatch.setattr(candidates, "plan_costs", None)
    assert replace(slowest, upper_bound_bytes=limit_bytes + 1).fits == fits
