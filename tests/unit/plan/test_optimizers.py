"""An optimizer is one entry: plans, prices and memory read it, for one of a user's too."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcpar
from hpcpar.cost.compute.work import Workload
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.plan.optimizers import OPTIMIZERS, Optimizer
from hpcpar.schedule.steps import Op
from tests import outside

LENET = network("lenet5")


def updates(optimizer: str) -> tuple[float, float, int]:
    """Flops and bytes of the updates of a rank, and what it holds for the optimizer."""
    priced = hpcpar.plan("lenet5", 2, 64, strategy="data", optimizer=optimizer)
    load = Workload(LENET, priced.plan)
    work = [load.of(step) for step in schedule_for(LENET, priced.plan).steps
            if getattr(step, "op", None) is Op.UPDATE]
    return (sum(w.flops for w in work), sum(w.bytes for w in work),
            int(priced.prediction.memory.optimizer_bytes))


def test_an_update_moves_weight_gradient_and_state() -> None:
    assert {name: entry.values for name, entry in OPTIMIZERS.items()} == {
        "sgd": 3, "momentum": 5, "adam": 7, "adamw": 7}


def test_an_outside_optimizer_is_priced_by_its_entry() -> None:
    with outside.registered():
        flops, moved, held = updates("nesterov")
        assert (moved, held) == updates("momentum")[1:] and held > 0
        assert flops == 8 / 5 * updates("momentum")[0]


def test_a_plan_file_names_an_outside_optimizer(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    with outside.registered():
        hpcpar.plan("lenet5", 2, 64, optimizer="nesterov").save(path)
        assert hpcpar.load_plan(path).optimizer == "nesterov"
    with pytest.raises(InputError, match=r"unknown optimizer 'nesterov' \(known: adam, adamw, m"):
        hpcpar.load_plan(path)


def test_names_are_taken_once() -> None:
    with pytest.raises(InputError, match=r"'adam' is already defined in hpcpar\.plan\.optimizers"):
        Optimizer("adam", (), 1)(lambda u: None)
