"""Traces: what a viewer demands of the events, and that measured timelines of all ranks lie on one
clock.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.plan import plan as plans
from hpcpar.report.compare import recorded_prediction
from hpcpar.report.late_senders import partners
from hpcpar.report.traces import perfetto
from hpcpar.report.traces.perfetto_measured import measured
from hpcpar.schedule.steps import Step
from hpcpar.train import record_file
from hpcpar.train.record_with_schedule import with_schedule
from hpcpar.train.run_record import RunRecord
from tests.unit.played import Lasts, lenet, play
from tests.unit.trace_format import check

PLANS = {
    "data": lenet("data", 3), "spatial": lenet("spatial", 3, overlap="none"),
    "one": lenet("data", 1),
    "1f1b": lenet("pipeline:2x2", 4, microbatches=4, order="1f1b"),
}


def lasts(seed: int = 3) -> Lasts:
    rng = np.random.default_rng(seed)

    def seconds(rank: int, iteration: int, step: Step) -> float:
        return float(1e-4 * (1 + 0.3 * rank + rng.random()))

    return seconds


@cache
def jittered(name: str) -> RunRecord:
    return play(PLANS[name], lasts()).record


def both(name: str, iterations: int = 2) -> list[dict[str, Any]]:
    run = jittered(name)
    return [*perfetto.events(1, recorded_prediction(run), "simulated"),
            *measured(run, 2, iterations)]


@pytest.mark.parametrize("name", PLANS)
def test_events_follow_the_format(name: str) -> None:
    events = both(name)
    check(json.loads(json.dumps(events, allow_nan=False)))
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2}
    assert {f"rank {r}" for r in range(PLANS[name].ranks)} <= threads
    assert {e["cat"] for e in events if e["ph"] == "X"
            and e["pid"] == 2} >= {"forward", "backward", "update", "iteration"}


def test_the_checks_find_faults() -> None:
    good = both("data")
    spans = [i for i, e in enumerate(good) if e["ph"] == "X" and e["cat"] == "forward"
             and e["pid"] == 2]
    for i, change in ((spans[1], {"ts": 0.0}), (spans[0], {"dur": 1e9}), (spans[0], {"dur": -1.0}),
                      (spans[0], {"tid": 7})):
        bad = list(good)
        bad[i] = good[i] | change
        with pytest.raises(AssertionError):
            check(bad)


def test_ranks_lie_on_one_clock() -> None:
    """Clocks that are seconds apart and drift: a message never arrives before it was sent, and the
    ranks begin together.
    """
    plan = PLANS["spatial"]
    run = play(plan, lasts(), ahead_s=5.0, drift=1e-3).record
    events, source = measured(run, 2, 3), with_schedule(run)
    first = [e["ts"] for e in events if e["ph"] == "X" and e["name"] == "iteration 3"]
    assert len(first) == 3 and max(first) - min(first) < 2e4
    ends = {(e["id"], e["ph"]): e for e in events if e["ph"] in "sf"}
    halos = [e for e in events if e["ph"] == "X" and "halo" in e["name"] and "post" not in e["name"]
             and "wait" not in e["name"]]
    assert halos and len(ends) // 2 >= len(halos)
    # partners' slices of one communication overlap: neither is complete before both have begun
    ranks = {e["tid"]: int(e["args"]["name"].split()[1]) for e in events
             if e["name"] == "thread_name"}
    found = {(e["args"]["step"], e["args"]["iteration"], ranks[e["tid"]]): e for e in halos}
    pairs = [(a, found[step, k, other]) for (step, k, rank), a in found.items()
             for other in partners(source.schedule.steps[step], rank)]
    assert pairs and all(max(a["ts"], b["ts"]) <= min(a["ts"] + a["dur"], b["ts"] + b["dur"]) + 0.1
                         for a, b in pairs)


def test_a_slice_has_its_step_bytes_and_waiting() -> None:
    events = measured(jittered("1f1b"), 2, 1)
    move = next(e for e in events if e["ph"] == "X" and e["args"].get("messages")
                and "wait" not in e["name"] and "post" not in e["name"])
    assert {"step", "iteration", "layer", "phase", "microbatch", "algorithm", "sent_bytes",
            "messages", "waiting_s"} <= set(move["args"])
    assert {e["args"]["microbatch"] for e in events if e["ph"] == "X"
            and e["name"] == "conv1.forward"} == {0, 1, 2, 3}
    waits = [e for e in events if e["ph"] == "X" and e["cat"] == "waiting"]
    assert waits and all(e["name"].startswith("for rank ") for e in waits)
    labels = next(e["args"]["labels"] for e in events if e["name"] == "process_labels")
    assert labels == "clocks within 1 us"


def test_only_the_last_iterations_are_exported() -> None:
    run = play(PLANS["data"], lasts(), kept=[0, 1, 4, 5]).record
    names = [e["name"] for e in measured(run, 2, 3) if e["ph"] == "X" and e["cat"] == "iteration"
             and e["tid"] == 0]
    assert names == ["iteration 1", "iteration 4", "iteration 5"]


def test_the_command_writes_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, path, out = jittered("1f1b"), str(tmp_path / "run.h5"), tmp_path / "t.json"
    record_file.write(path, run)
    assert main(["trace", path, "-o", str(out), "--iterations", "2"]) == 0
    content = json.loads(out.read_text())
    check(content["traceEvents"])
    processes = [e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["simulated: lenet5 pipeline:2x2, 4 ranks",
                         "measured: pipeline:2x2, 4 ranks"]
    stages = [e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"
              and e["pid"] == 1]
    names = ("compute", "shared memory")
    assert stages == [f"stage {s} {name}" for s in (0, 1) for name in names]

    file = str(tmp_path / "plan.json")
    plans.save(PLANS["data"], file)
    assert main(["trace", "--plan", file, "-o", str(out)]) == 0
    alone = json.loads(out.read_text())["traceEvents"]
    check(alone)
    assert {e["pid"] for e in alone} == {1}

    damaged = str(tmp_path / "damaged.h5")
    record_file.write(damaged, replace(run, prediction={}))
    old = str(tmp_path / "old.h5")
    record_file.write(old, replace(run, start_s=None))
    for words, message in (([old], "has no start times of steps; run again"),
                           ([damaged], "'network' is missing"), ([], "give either"),
                           ([path, "--plan", file], "give either"),
                           ([path, "--machine", "local"], "--machine needs --plan")):
        capsys.readouterr()
        assert main(["trace", *words, "-o", str(out)]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
