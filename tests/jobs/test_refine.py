"""``hpcpar calibrate``, and ``--refine`` with the records of runs, as a user starts them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcpar.machine import files
from tests.jobs.conftest import Run

Make = Callable[..., Path]


def test_a_record_refines_the_machine(hpcpar: Run, plan: Make, digits: Path,
                                      tmp_path: Path) -> None:
    made, machine, out = plan(2, "spatial"), tmp_path / "m.toml", tmp_path / "run.h5"
    done = hpcpar(2, "calibrate", "--for", made, "-o", machine)
    assert done.returncode == 0, done.stderr
    for word in ("about", "round 1 of", "latency", "compute steps, each in"):
        assert word in done.stdout + done.stderr
    quality = files.load(str(machine)).quality
    low, high = quality["links"][0]["beta_s_per_byte"]
    assert 0 < low <= high and quality["compute"]["steps"] == len(files.load(str(machine)).compute)
    done = hpcpar(2, "run", "--plan", made, "--machine", machine, "--data", digits, "--steps", 20,
                  "--out", out)
    assert done.returncode == 0, done.stderr
    done = hpcpar(0, "calibrate", "--refine", out, "-o", machine, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["new"] == 0 and found["known"] == quality["compute"]["steps"]
    assert found["records"][0]["after_s"] > 0
    first = files.load(str(machine))
    assert hpcpar(0, "calibrate", "--refine", out, "-o", machine).returncode == 0
    assert files.load(str(machine)) == first and len(first.quality["sources"]) == 1
    refused = hpcpar(0, "calibrate", "--refine", out, "-o", machine, "--for", made)
    assert (refused.returncode == 2
            and "--refine takes times from records, but --for measures" in refused.stderr)


@pytest.mark.parametrize(("words", "message"), [
    (("-o", "none.toml", "--refine", "none.h5"), "cannot read machine file none.toml"),
    (("-o", "none.toml", "--refine"), "expected at least one argument"),
])
def test_calibrate_refuses_bad_requests_in_one_line(words: tuple[str, ...], message: str,
                                                    hpcpar: Run) -> None:
    done = hpcpar(0, "calibrate", *words)
    assert done.returncode == 2 and message in done.stderr and len(
        done.stderr.strip().splitlines()) == 1


def test_calibration_for_auto_measures_the_chosen_plan(hpcpar: Run, tmp_path: Path) -> None:
    """`plan` takes the reported choice, and every compute step of it was measured."""
    machine = tmp_path / "m.toml"
    network = ("--network", "lenet5", "--input", "1x8x8", "--batch", 16)
    done = hpcpar(2, "calibrate", "--for", "auto", *network, "--budget", "5h", "-o", machine)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("auto chooses ") and "unchanged after" in first
    found = files.load(str(machine)).quality["search"]
    assert found["stands"] and 0 < found["measured"] <= found["shapes"]
    done = hpcpar(0, "plan", *network, "--ranks", 2, "--machine", machine, "--json")
    plan = json.loads(done.stdout)
    assert (plan["strategy"], plan["iteration_s"]) == (found["strategy"], found["iteration_s"])
    assert plan["measured_compute"] == pytest.approx(1.0)


@pytest.mark.parametrize(("words", "message"), [
    (("--for", "auto"), "--for auto needs --network and --batch"),
    (("--for", "auto", "--network", "lenet5", "--batch", 8, "--strategy", "data"), "drop plan"),
    (("--network", "lenet5", "--batch", 8, "--budget", "5min"), "--budget needs --for auto"),
])
def test_options_that_contradict_auto_are_refused(words: tuple[str, ...], message: str, hpcpar: Run,
                                                  tmp_path: Path) -> None:
    done = hpcpar(0, "calibrate", *words, "-o", tmp_path / "m.toml")
    assert done.returncode == 2 and message in done.stderr
