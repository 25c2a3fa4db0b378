"""Runs that are recorded, compared and traced, as a user does it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcpar.report.late_senders import clocked
from hpcpar.train import record_file
from tests.jobs.conftest import Run
from tests.unit.trace_format import check

Make = Callable[..., Path]
#: ranks, strategy, options of the plan
CASES = {"one": (1, "data", {}), "data": (2, "data", {}), "owt": (4, "owt", {}),
         "layerwise": (4, "layerwise", {}),
         "1f1b": (2, "pipeline", {"order": "1f1b", "microbatches": 4}),
         "stages": (4, "pipeline:2x2", {"microbatches": 4})}


@pytest.fixture(scope="module")
def runs(hpcpar: Run, plan: Make, digits: Path,
         tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The record of each case."""
    folder, out = tmp_path_factory.mktemp("runs"), {}
    for name, (ranks, strategy, more) in CASES.items():
        out[name] = folder / f"{name}.h5"
        done = hpcpar(ranks, "run", "--plan", plan(ranks, strategy, **more), "--data", digits,
                      "--steps", 30, "--out", out[name])
        assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("name", CASES)
def test_records_have_the_times_of_all_steps(name: str, runs: dict[str, Path]) -> None:
    run = record_file.read(str(runs[name]))
    assert (run.start_s is not None
            and run.end_s is not None
            and run.wait_s is not None
            and run.clock is not None
            and run.kept is not None)
    assert list(run.kept) == list(range(30)) and run.clock.shape == (len(run.ranks), 2, 3)
    done = run.seconds > 0
    # every step that took time has a beginning, within its iteration
    assert not np.isnan(run.start_s[done]).any()
    assert np.nanmin(run.start_s) >= 0 and (np.nanmax(run.start_s, axis=2) <= run.iteration_s
                                            + 1e-6).all()
    comm = np.array([s.kind == "comm" for s in run.steps])
    assert (np.isnan(run.end_s[:, :, ~comm])).all() and (
        np.isnan(run.start_s) | ~np.isnan(run.end_s) | ~comm
    ).all()
    took = run.end_s - run.start_s
    assert (np.nan_to_num(run.wait_s) <= run.seconds + 1e-6).all() and np.nanmin(
        took, initial=1.0
    ) >= 0
    assert (np.nan_to_num(took - run.seconds)[:, :, comm] >= -1e-6).all()
    times = clocked(run)
    assert times.run is not None
    # nothing is complete before the last partner has begun it; the clocks are known to half a round
    # trip, on either side
    slack = 2 * run.clock[:, :, 2].max() + 1e-6
    collective = comm & np.array([s.op in ("allreduce", "allgather") for s in run.steps])
    late = times.last_s - times.end_s
    assert np.nanmax(late[:, :, collective], initial=-1.0) <= slack


def test_compare_accounts_for_the_whole_error(runs: dict[str, Path], hpcpar: Run) -> None:
    done = hpcpar(0, "compare", *runs.values(), "--json")
    assert done.returncode == 0, done.stderr
    rows = dict(zip(runs, json.loads(done.stdout)["runs"], strict=True))
    for name, row in rows.items():
        assert row["tells_waiting"] and row["stages"] == (2 if name in ("1f1b", "stages") else 1)
        error = row["measured_iteration_s"] - row["predicted_iteration_s"]
        assert sum(t["excess_s"] for t in row["unforeseen"]) == pytest.approx(error, rel=1e-6)
        parts = [t for split in row["phases"].values() for t in split.values()]
        assert sum(t["predicted_s"] for t in parts) == pytest.approx(
            row["predicted_iteration_s"], rel=1e-6
        )
        assert all(t["measured_s"] >= 0 for t in parts)
        assert ("bubble" in row["phases"]) == (row["stages"] == 2)
    for name in ("1f1b", "stages"):
        bubble = rows[name]["phases"]["bubble"]["waiting"]
        assert bubble["predicted_s"] > 0 and bubble["measured_s"] > 0
    shown = hpcpar(0, "compare", *runs.values(), COLUMNS="100")
    assert shown.returncode == 0 and max(map(len, shown.stdout.splitlines())) <= 100


@pytest.mark.parametrize("name", CASES)
def test_trace_shows_simulated_and_measured_iterations(name: str, runs: dict[str, Path],
                                                       hpcpar: Run, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    # all of them: ranks in step may pass several iterations without waiting for each other
    done = hpcpar(0, "trace", runs[name], "-o", out, "--iterations", 30)
    assert done.returncode == 0, done.stderr
    events = json.loads(out.read_text())["traceEvents"]
    check(events)
    assert [e["args"]["name"].partition(":")[0] for e in events
            if e["name"] == "process_name"] == ["simulated", "measured"]
    arrows = sum(e["ph"] == "s" for e in events if e["pid"] == 2)
    assert (arrows > 0) == (CASES[name][0] > 1)
    if name == "data":
        # nothing but collectives of both ranks: an arrow for each wait
        run = record_file.read(str(runs[name]))
        times = clocked(run)
        assert arrows == (times.waiting_s > 0).sum()
