"""The gallery of published runs: what efficiencies are worth where nothing was fitted to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.gallery import scaling, scaling_left_out
from bench.gallery.prediction import Result, case
from bench.gallery.scaling import Judgment
from bench.gallery.scaling_left_out import CHOICES, IN_USE, WITHOUT, left_out, seconds
from bench.gallery.series import series
from hpcpar.cost.price_family import price_family
from hpcpar.machine.model import Machine


def test_the_values_in_use_are_among_the_choices_and_give_the_prediction() -> None:
    row = next(row for row in series() if "OneFlow-Benchmark" in row.source and row.devices == "4")
    network, plan, machine = case(row)
    found = seconds(network, plan, machine, CHOICES)
    assert found.shape == tuple(map(len, CHOICES)) and len(set(found.ravel())) > found.size / 2
    assert (machine.overlap,) == IN_USE.overlap
    assert {level.reached for level in machine.levels} == set(IN_USE.reached)

    def of(values: scaling_left_out.Values) -> float:
        at = tuple(every.index(value) for every, (value,) in zip(CHOICES, values, strict=True))
        assert seconds(network, plan, machine, values).item() == pytest.approx(found[at])
        return float(found[at])

    def priced(changed: Machine) -> float:
        return float(price_family(network, plan, changed).iteration_s)

    assert of(IN_USE) == pytest.approx(priced(machine))
    assert of(WITHOUT["interference"]) == pytest.approx(priced(replace(machine, overlap=1.0)))
    levels = tuple(replace(level, reached=1.0) for level in machine.levels)
    assert of(WITHOUT["what links reach"]) == pytest.approx(priced(replace(machine, levels=levels)))
    assert of(WITHOUT["the slowest device"]) < of(IN_USE)


def test_a_group_takes_the_values_and_the_constant_of_all_others() -> None:
    measured = np.array([0.9, 0.8, 0.5, 0.6])
    predicted = np.array([[0.9, 0.7], [0.8, 0.6], [0.7, 0.5], [0.8, 0.6]])
    judged = left_out(["a", "a", "b", "b"], predicted, measured)  # each suits its own pairs
    assert judged.error == pytest.approx(0.2) and judged.bias == pytest.approx(0.0)
    assert judged.constant == pytest.approx((0.35 + 0.25 + 0.35 + 0.25) / 4)
    assert Judgment.between(predicted[:, 0], measured).error == pytest.approx(0.1)


def test_files_of_a_source_that_name_their_devices_are_one_source() -> None:
    found = [row for row in series() if row.published_device == "Quadro RTX 6000"]
    assert len({row.source for row in found}) == 3 and len(set(map(scaling.source_of, found))) == 1
    pairs = list(scaling.pairs(Result(row, 1.0) for row in found))
    assert {pair.many.row.devices for pair in pairs} == {"2", "4"}


def test_the_page_reads_what_the_command_wrote(tmp_path: Path) -> None:
    found = scaling_left_out.read()
    assert [label for label, _ in found] == [
        "nothing", "each machine", "each framework", *WITHOUT, "the frameworks' rules"]
    assert len({judged.count for _, judged in found}) == 1
    path = tmp_path / "scaling_left_out.csv"
    scaling_left_out.write(found, path)
    assert path.read_text() == scaling_left_out.FILE.read_text()
    shown = "\n".join(scaling_left_out.lines())
    assert all(judged.line(label) in shown for label, judged in found)


def test_the_file_is_of_the_pairs_of_the_page() -> None:
    pairs = list(scaling.pairs(Result(row, 1.0) for row in scaling.rows()))
    assert {judged.count for _, judged in scaling_left_out.read()} == {len(pairs)}
