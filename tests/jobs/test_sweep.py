"""``hpcpar sweep`` with real ranks on this machine, and the script for plain mpiexec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.conftest import ROOT, Run, clean_environment
from tests.limits import LIMIT_S, wait_until


def words(digits: Path, out: Path, ranks: str, *more: str) -> list[str]:
    """The options of a sweep of LeNet-5."""
    return ["sweep", "strong", "--network", "lenet5", "--input", "1x8x8", "--batch", "16",
            "--ranks", ranks, "--strategy", "data,filter", "--data", str(digits), "--out",
            str(out), "--machine", "local", *more]


def test_cases_run_and_are_reported(hpcpar: Run, digits: Path, tmp_path: Path) -> None:
    done = hpcpar(0, *words(digits, tmp_path, "1,2", "--steps", "6", "--json"))
    assert done.returncode == 0, done.stderr
    points = {p["case"]: p for p in json.loads(done.stdout)["points"]}
    assert list(points) == ["data-p1-b16", "filter-p1-b16", "data-p2-b16", "filter-p2-b16"]
    assert all(p["state"] == "done" and p["measured"]["iteration_s"] > 0 for p in points.values())
    assert "3/3  filter-p2-b16  done" in done.stderr
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_sizes_beyond_this_machine_are_simulated(hpcpar: Run, digits: Path, tmp_path: Path) -> None:
    more = ("--steps", "4", "--simulate", "1,4,8")
    done = hpcpar(0, *words(digits, tmp_path, "1", *more, "--json"))
    assert done.returncode == 0, done.stderr
    points = {p["case"]: p for p in json.loads(done.stdout)["points"]}
    assert {name for name, p in points.items() if p["simulated"]} == {
        "data-p4-b16", "data-p8-b16", "filter-p4-b16", "filter-p8-b16"}
    for name, point in points.items():
        if point["simulated"] and name != "filter-p8-b16":  # cannot run: six filters
            assert point["measured"]["iteration_s"] == pytest.approx(
                point["predicted"]["iteration_s"], rel=0.01)
            assert point["accuracy"] is None
            assert (tmp_path / "cases" / name / "run.h5").exists()
    again = hpcpar(0, "sweep", "report", tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("Fastest, as measured: ") and " on 1 rank" in again.stdout
    assert "~: simulated rank by rank, not measured" in again.stdout


def test_a_case_that_fails_gives_its_reason(hpcpar: Run, digits: Path, tmp_path: Path) -> None:
    """The ranks are one too few: that is what they say, and so does the sweep."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        f'#!/bin/sh\nshift 2\nexec {Path(sys.executable).parent / "mpiexec"} -n 1 "$@"\n')
    launcher.chmod(0o755)
    done = hpcpar(0, *words(digits, tmp_path, "1,2", "--steps", "3", "--json", "--mpiexec",
                            str(launcher)))
    assert done.returncode == 1
    states = {p["case"]: (p["state"], p["reason"]) for p in json.loads(done.stdout)["points"]}
    assert states["data-p1-b16"] == ("done", "")
    assert (states["data-p2-b16"][0] == "failed"
            and "the plan is for 2 ranks, but this job has 1" in states["data-p2-b16"][1])


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_ranks_and_can_be_resumed(
    hpcpar: Run, digits: Path, tmp_path: Path, sign: signal.Signals
) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-m", "hpcpar", *words(digits, tmp_path, "2", "--steps", "100000")],
        stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )
    log = tmp_path / "cases" / "data-p2-b16" / "log"
    wait_until(lambda: log.exists() and "lenet5 on 2 ranks" in log.read_text(), begun)
    begun.send_signal(sign)
    _, said = begun.communicate(timeout=LIMIT_S)
    assert begun.returncode == 130 and said.splitlines()[-1] == "hpcpar: interrupted"
    own = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, str(tmp_path))]
    assert not own, "ranks were left running"
    status = json.loads((tmp_path / "cases" / "data-p2-b16" / "status.json").read_text())
    assert status["state"] == "planned"


def _mentions(path: Path, text: str) -> bool:
    try:
        return text in path.read_text() and int(path.parent.name) != os.getpid()
    except OSError:
        return False


def test_the_script_for_plain_mpiexec(plan: Callable[..., Path], digits: Path,
                                      tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "activate").exists():
        pytest.skip("the script activates .venv of the checkout, which is not there")
    command = ["bash", str(ROOT / "jobs" / "mpirun.sh"), "2", str(plan(2, "data")), str(digits)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path,
                          env=clean_environment(), timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "run.h5").exists()
            and (tmp_path / "weights.h5").exists()
            and "accurate" in done.stdout)
