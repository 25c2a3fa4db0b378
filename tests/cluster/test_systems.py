"""``hpcpar sweep`` under real batch systems: it submits, waits, is interrupted, goes on, and says
what became of its jobs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcpar.sweep.schedulers import SCHEDULERS
from tests.limits import LIMIT_S, wait_until

Sweep = Callable[..., "subprocess.CompletedProcess[str]"]


class System(NamedTuple):
    """A batch system, and what its tests expect."""

    name: str
    #: Environment of its commands, without matplotlib: pictures are tested elsewhere, and take most
    #: of a small sweep's time.
    env: dict[str, str]
    #: Nodes of 1 and 2 ranks.
    nodes: list[int]
    #: State of a job that was canceled.
    canceled: str


#: By fixture: the launcher, nodes of two ranks, and the state of a canceled job.
EXPECTED = {"slurm": ("slurm", 2, "CANCELLED"), "pbs": ("pbs", 2, "C"),
            "openpbs": ("pbs", 1, "F"), "flux": ("flux", 2, "CANCELED"),
            "sge": ("sge", 1, "100 : assumedly after job")}


@pytest.fixture(params=EXPECTED)
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    env = request.getfixturevalue(request.param)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "matplotlib.py").write_text("raise ImportError('left out')\n")
    path = os.pathsep.join((str(tmp_path / "plain"), env["PYTHONPATH"]))
    name, nodes, canceled = EXPECTED[request.param]
    return System(name, env | {"PYTHONPATH": path}, [1, nodes], canceled)


def words(system: System, out: Path, data: Path, *more: str, ranks: str = "1,2",
          steps: int = 3) -> list[str]:
    """The command of a sweep."""
    return [sys.executable, "-m", "hpcpar", "sweep", "strong", "--network", "lenet5", "--batch",
            "64", "--ranks", ranks, "--strategy", "data,filter", "--steps", str(steps), "--data",
            str(data), "--out", str(out), "--launcher", system.name, "--ranks-per-node",
            str(2 // system.nodes[1]), *more]


@pytest.fixture
def sweep(system: System, data: Path, tmp_path: Path) -> Sweep:
    """``sweep(*options)``: the finished command, in one folder."""

    def run(*more: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words(system, tmp_path / "out", data, *more, **options), cwd=tmp_path,
                              capture_output=True, text=True, timeout=LIMIT_S, env=system.env)

    return run


def points(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The points of a sweep's JSON document, by case."""
    return {p["case"]: p for p in json.loads(done.stdout)["points"]}


def test_submits_runs_and_collects(system: System, sweep: Sweep, tmp_path: Path) -> None:
    done = sweep("--json")
    assert done.returncode == 0, done.stderr
    assert "submitted jobs" in done.stderr  # one for each size
    found = points(done)
    assert {name: p["state"] for name, p in found.items()} == dict.fromkeys(
        ("data-p1-b64", "filter-p1-b64", "data-p2-b64", "filter-p2-b64"), "done")
    assert [found[f"data-p{ranks}-b64"]["nodes"] for ranks in (1, 2)] == system.nodes
    assert all(p["measured"]["iteration_s"] > 0 for p in found.values())
    log = (tmp_path / "out/cases/data-p2-b64/log").read_text()
    assert "lenet5 on 2 ranks" in log
    assert (tmp_path / "out/report.html").exists()
    # the same command again finds everything done
    again = sweep("--json")
    assert again.returncode == 0 and "submitted" not in again.stderr
    assert points(again) == found


def test_goes_on_after_an_interrupt(system: System, sweep: Sweep, data: Path,
                                    tmp_path: Path) -> None:
    """Ctrl-C leaves the jobs, and the same command collects them."""
    first = subprocess.Popen(words(system, tmp_path / "out", data, "--one-allocation"),
                             stderr=subprocess.PIPE, text=True, env=system.env, cwd=tmp_path)
    assert first.stderr is not None
    line = ""
    while "submitted" not in line:
        line = first.stderr.readline()
        assert line, "the sweep ended before it submitted"
    job = line.split()[-1]
    first.send_signal(signal.SIGINT)
    said = first.stderr.read()
    assert first.wait(LIMIT_S) == 130
    assert f"jobs {job} keep running" in said and f"{SCHEDULERS[system.name].cancel} {job}" in said
    again = sweep("--one-allocation", "--json")
    assert again.returncode == 0 and "submitted" not in again.stderr, again.stderr
    assert {p["state"] for p in points(again).values()} == {"done"}


@pytest.mark.parametrize("system", ["slurm"], indirect=True)
def test_failed_cases_run_again_on_request(sweep: Sweep) -> None:
    """A wrong --mpi gives worlds of one, which a run refuses, naming the right one."""
    failed = sweep("--mpi", "none", "--json")
    assert failed.returncode == 1
    assert "2 of 4 cases failed (data-p2-b64, filter-p2-b64)" in failed.stderr
    reason = points(failed)["data-p2-b64"]["reason"]
    assert "separate worlds of 1" in reason and "srun --mpi=pmi2" in reason
    assert points(failed)["data-p1-b64"]["state"] == "done"
    still = sweep("--json")
    assert still.returncode == 1 and "submitted" not in still.stderr
    mended = sweep("--retry", "--json")
    assert mended.returncode == 0 and {p["state"]
                                       for p in points(mended).values()} == {"done"}, mended.stderr


def test_a_job_that_is_canceled_is_a_failure(system: System, sweep: Sweep,
                                             tmp_path: Path) -> None:
    begun = sweep("--no-wait", "--json", ranks="2", steps=100_000)
    assert begun.returncode == 0, begun.stderr
    assert {p["state"] for p in points(begun).values()} == {"submitted"}
    (job,) = re.findall(r"submitted job (\S+)", begun.stderr)
    log = tmp_path / "out/cases/data-p2-b64/log"
    wait_until(lambda: log.exists() and "lenet5 on 2 ranks" in log.read_text())
    cancel = SCHEDULERS[system.name].cancel.split()
    subprocess.run([*cancel, job], check=True, env=system.env)
    done = sweep("--json", ranks="2", steps=100_000)
    assert done.returncode == 1
    assert all(f"job {job} ended ({system.canceled}) before this case did" in p["reason"]
               for p in points(done).values())


def test_a_job_that_is_refused_is_bad_input(system: System, sweep: Sweep) -> None:
    done = sweep("--partition", "none", ranks="2")
    assert done.returncode == 2
    (line,) = (said for said in done.stderr.splitlines() if said.startswith("hpcpar: "))
    before = line.partition("; look at")[0]
    assert f"{SCHEDULERS[system.name].title} does not take" in before
    assert "partition" in before or "queue" in before
