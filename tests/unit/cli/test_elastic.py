"""The supervisor of an elastic run, with a launcher that does what the test says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcpar.cli import elastic
from hpcpar.cli.main import main
from hpcpar.machine import files
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan, make_plan

#: Ends as its line of the file `story` says: status, lost ranks, whether it writes a checkpoint and
#: trains until it is asked to stop, but loses the first request.
LAUNCHER = """#!/bin/bash
trap '' TERM
trap 'asked+=x' USR1
cd "$(dirname "$0")"
printf '%s\\n' "$*" >> calls
read -r status lost save last < <(sed -n "$(wc -l < calls)p" story)
for ((i = 0; i < lost; i++)); do
  echo "rank $i on here was killed by SIGKILL" >> "$HPCPAR_LOST"
done
[ "$save" != yes ] || printf x >> c.h5
if [ "$last" = trains ]; then
  touch training
  until [ ${#asked} -ge 2 ]; do sleep 0.01; done
fi
exit "$status"
"""


def given(**options: Any) -> Plan:
    return make_plan(NetworkSpec("lenet5", (1, 8, 8), 10), "data", 4, 12,
                     machine=files.load("local"), **options)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mpiexec").write_text(LAUNCHER)
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setattr(elastic, "launcher", lambda: [str(tmp_path / "mpiexec")])
    monkeypatch.setattr(elastic.signal, "signal", lambda number, handler: None)
    plans.save(given(), "p.json")

    def play(*story: str, words: tuple[str, ...] = ()) -> tuple[int, list[str]]:
        (tmp_path / "story").write_text("\n".join(story) + "\n")
        status = main(["run", "--elastic", "-n", "4", "--plan", "p.json", "--data", "d.h5",
                       "--checkpoint", "c.h5", *words])
        calls = (tmp_path / "calls").read_text().splitlines()
        assert len(calls) == len(story)
        return status, calls

    return play


@pytest.mark.parametrize("status", [0, 2, 1, 75])
def test_other_failures_than_a_lost_rank_end_the_run(run: Any, status: int) -> None:
    """Done, bad input, an error of the training, a request to stop."""
    assert run(f"{status} 0 yes")[0] == status


def test_the_run_resumes_from_the_checkpoint_with_fewer_ranks(
        run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, calls = run("1 1 yes", "9 2 yes", "0 0 yes", words=("--resume=old.h5", "--steps", "9"))
    assert status == 0
    first, second, third = (call.split() for call in calls)
    assert first[:2] == ["-n", "4"] and second[:2] == ["-n", "3"] and third[:2] == ["-n", "1"]
    assert first[-4:] == ["--plan", "p.json", "--resume", "old.h5"]
    assert second[-4:] == ["--plan", "c.p3.plan.json", "--resume", "c.h5"]
    assert all("--elastic" not in call and "-n 4 --" not in call for call in calls)
    assert all(call.count("--steps 9") == call.count("--plan") == 1 for call in calls)
    shown = capsys.readouterr().err
    assert "rank 0 on here was killed by SIGKILL: continuing with 3 ranks" in shown


def test_a_failed_launcher_counts_as_a_lost_rank(run: Any) -> None:
    assert run("137 0 yes", "0 0 yes")[1][1].startswith("-n 3")


def test_the_run_gives_up_without_progress(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("9 1 yes", "9 1 no", "9 1 no", words=("--elastic-return", "1h"))[0] == 1
    assert "giving up" in capsys.readouterr().err


def test_lost_ranks_come_back(run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that runs without them is asked to stop until it does. Two hours pass once it trains.
    """
    monkeypatch.setattr(elastic, "_POLLS_PER_REQUEST", 2)
    monkeypatch.setattr(elastic, "time", SimpleNamespace(
        monotonic=lambda: 7200.0 * (tmp_path / "training").exists(), sleep=time.sleep))
    status, calls = run("1 1 yes", "75 0 yes trains", "0 0 yes", words=("--elastic-return", "1h"))
    assert status == 0 and [call.split()[1] for call in calls] == ["4", "3", "4"]
    assert calls[2].endswith("--plan p.json --resume c.h5")
    assert capsys.readouterr().err.count("lost ranks are back") == 1


def test_elastic_needs_checkpoints_and_the_plans_ranks(run: Any,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--elastic", "--plan", "p.json", "--data", "d.h5"]
    assert main(words) == 2 and "--checkpoint" in capsys.readouterr().err
    assert main([*words, "-n", "3", "--checkpoint", "c.h5"]) == 2
    assert "the plan is for 4 ranks, but -n asks for 3" in capsys.readouterr().err


def test_a_new_plan_keeps_the_training() -> None:
    plan = given(precision="fp64", optimizer="adam", batch_norm="local")
    assert elastic.plan_for(plan, 4) is plan
    for ranks in (3, 2, 1):
        found = elastic.plan_for(plan, ranks)
        assert (found.ranks, found.batch, found.network) == (ranks, 12, plan.network)
        assert (found.dtype, found.optimizer, found.batch_norm) == ("float64", "adam", "local")


def test_options_are_removed_with_their_values() -> None:
    words = ["run", "-n", "4", "--plan=p", "--data", "-n3", "--resume", "r", "--elastic", "x"]
    assert elastic.without(words, elastic._OWN) == ["run", "--data", "x"]
    assert os.environ.get("HPCPAR_LOST") is None
