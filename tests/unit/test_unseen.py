"""Reports on cases that no calibration has seen: accuracies over jobs, and the ranking of
strategies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.unseen import running
from bench.unseen.cases import CaseRun, Group, Place, Result
from bench.unseen.jobs import Case, Failed, Job
from bench.unseen.report import APART, agree, repeated, report, tau
from hpcpar.machine import files


def case(*times: tuple[float, float]) -> Result:
    """A case with the predicted and the measured time of each job."""
    runs = [CaseRun(measured, predicted, predicted, 1.0, {}, {}, 8, None, 0.0, "")
             for predicted, measured in times]
    return Result("memory", "lenet5", (1, 28, 28), 64, 2, "data", runs=runs)


def test_medians_over_jobs_and_each_alone() -> None:
    """A job's prediction is set beside its own measurement, however fast the machine was then."""
    result = case((9.0, 10.0), (12.0, 16.0), (11.0, 10.0))
    assert result.accuracy == pytest.approx(0.9)  # 9 beside 10
    assert result.single == pytest.approx([0.9, 0.75, 0.9])
    assert case((8.0, 10.0), (4.0, 5.0), (16.0, 20.0)).predicted_s == pytest.approx(8.0)
    # the medians would be 10 beside 10
    assert case((10.0, 10.0), (6.0, 5.0), (24.0, 20.0)).accuracy == pytest.approx(0.8)


def test_ties_have_no_order() -> None:
    times = [(1.0, 1.02), (1.1, 1.0), (2.0, 2.0), (4.0, 3.0)]
    assert tau(agree(times)) == pytest.approx(4 / 6) and tau(agree(times, APART)) == 1.0
    assert tau(agree([*times, (3.0, 9.0)], APART)) == pytest.approx((8 - 1) / 9)
    assert tau(agree([(1.0, 1.0), (2.0, 1.01), (3.0, 1.02)],
                     APART)) is None and tau(agree(times[:2])) is None


def test_agreement_of_jobs_on_rankings_is_measured() -> None:
    """Two jobs agree on two of three pairs; the third job agrees with the first on none and with
    the second on one.
    """
    jobs = [case((1.0, 1.0), (1.0, 1.0), (1.0, 3.0)), case((1.0, 2.0), (1.0, 3.0), (1.0, 2.0)),
            case((1.0, 3.0), (1.0, 2.0), (1.0, 1.0))]
    assert repeated(jobs) == pytest.approx((1 / 3 - 1 - 1 / 3) / 3)
    assert repeated([case((1.0, 1.0))] * 3) is None and repeated([]) is None


def test_cases_whose_ranks_share_cores_are_counted_separately() -> None:
    own, shared = case((9.0, 10.0)), case((5.0, 10.0))
    shared.runs = [replace(run, shares_cores=True) for run in shared.runs]
    text = report([own, shared])
    first, second = text.index("## A core for each rank"), text.index("## Ranks share cores")
    assert "unseen: 1, mean accuracy 90.0%" in text[first:second]
    assert "unseen: 1, mean accuracy 50.0%" in text[second:]
    assert "share cores" not in report([own])


def test_a_jobs_file_keeps_its_work(tmp_path: Path) -> None:
    cases = [Case("data.json", ["data-8.json", "data-32.json"], 50, "data.h5"),
             Case("auto.json", [], 3, "auto.h5")]
    job = Job(cases, "images.h5", "machine.toml", True, "wire.json")
    job.save(tmp_path / "job.json")
    assert Job.load(tmp_path / "job.json") == job


def test_a_failed_job_keeps_earlier_results(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(Place(), "lenet5", (1, 28, 28), 64, 2, ("data",))
    run, jobs = case((9.0, 10.0)).runs[0], 0

    def job(bench: running.Bench, group: Group, *words: str) -> None:
        nonlocal jobs
        if "calibrate" in words:
            files.save(files.load("local"), words[-1])
            return
        jobs += 1
        if jobs == 2:
            raise Failed("a rank died")

    monkeypatch.setattr(running.Bench, "_job", job)
    monkeypatch.setattr(running.Bench, "_data", lambda bench, group: tmp_path / "images.h5")
    monkeypatch.setattr(running, "_case_runs",
                        lambda network, job, load, date: [run] * len(job.cases))
    bench = running.Bench(tmp_path, [], 3)
    bench.run(group)
    failed = bench.results[group.id("data")]
    assert failed.note == "failed: a rank died" and len(failed.runs) == 1 and bench.missing(
        group) == ["data"]
    bench = running.Bench(tmp_path, [], 3)
    bench.run(group)
    whole = bench.results[group.id("data")]
    assert not whole.note and len(whole.runs) == 3 and jobs == 4 and bench.missing(group) == []
