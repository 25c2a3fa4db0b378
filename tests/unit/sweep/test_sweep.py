"""``hpcpar sweep`` without ranks: plans, resuming, failures and the report, with a launcher that
only pretends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.api.sources import plan_and_machine
from hpcpar.cli import main as cli
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.data.synthetic import synthetic
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.prediction.price import price
from hpcpar.process import launchers
from hpcpar.report import pictures
from hpcpar.report.sweep_points import (
    IterationParts,
    Point,
)
from hpcpar.report.tables.sweep_table import notes
from hpcpar.sweep import folder, report, study
from hpcpar.train import record_file, run_record

#: Iterations that the pretended ranks record; their median is the largest of three ranks' times.
ITERATIONS = 10
PLANNING = study.StudyOptions(gather="lazy", overlap=plans.Overlap.FULL, precision="fp32",
                              bucket_bytes=None)
Sweep = Callable[..., tuple[int, dict[str, Any]]]


def pretend(words: list[str], seconds: float) -> None:
    """Write the record that ``hpcpar run`` would: every iteration takes `seconds` over the number
    of ranks.
    """
    path, out = (words[words.index(name) + 1] for name in ("--plan", "--out"))
    plan = plans.load(path)
    network = plan.network.build()
    schedule, ranks = schedule_for(network, plan), plan.ranks
    s = len(schedule.steps)
    times = np.full((ranks, ITERATIONS), seconds / ranks) * np.linspace(0.9, 1.1, ITERATIONS)
    prediction = price(network, plan, plan_and_machine(plan, None)[1],
                       samples=640).to_json(steps=True)
    sent = np.zeros((ranks, s), np.int64)
    record_file.write(
        out,
        run_record.RunRecord(plans.to_json(plan), run_record.steps_of(schedule),
                         [run_record.RankInfo("here", 1, 1, "cpu", 1)] * ranks,
                         np.repeat(times[:, :, None] / s, s, axis=2), times, sent, sent,
                         np.ones(ITERATIONS), prediction=prediction, warmup=2, samples=640,
                         kept=np.zeros(0, int), clock=np.zeros((ranks, 2, 3)),
                         begin_s=np.zeros((ranks, 0)), start_s=np.zeros((ranks, 0, s)),
                         end_s=np.zeros((ranks, 0, s)), wait_s=np.zeros((ranks, 0, s))),
    )


class Launcher:
    """Stands for mpiexec: notes its commands, and fails for the cases in `failing`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails: dict[str, str] = {}
        self.seconds = 0.08

    def __call__(self, words: list[str], log: str, limit_s: float | None) -> int | None:
        case = Path(log).parent.name
        self.ran.append(case)
        wrong = self.fails.get(case)
        if wrong == "interrupt":
            raise KeyboardInterrupt
        Path(log).write_text(
            f"it began\n{'hpcpar: ' + wrong if wrong else ''}\nmpiexec: rank 0 has ended\n")
        if wrong == "late":
            return None
        if wrong:
            return 3
        pretend(words, self.seconds)
        return 0


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    found = Launcher()
    monkeypatch.setattr(launchers, "run", found)
    return found


@pytest.fixture
def sweep(tmp_path: Path, launcher: Launcher, capsys: pytest.CaptureFixture[str],
          monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    """``sweep(*options)``: exit status and JSON document; in one folder, without pictures."""
    monkeypatch.setattr(report, "pictures", lambda *_: [])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    data = tmp_path / "data.h5"
    synthetic(str(data), (1, 8, 8), 10, 640)

    def run(*more: str, kind: str = "strong", ranks: str = "1,2",
            machine: str = "local") -> tuple[int, dict[str, Any]]:
        status = cli.main(
            ["sweep", kind, "--network", "lenet5", "--input", "1x8x8", "--batch", "64", "--ranks",
             ranks, "--strategy", "data,filter", "--data", str(data), "--mpiexec", "pretended",
             "--out", str(tmp_path / "out"), "--json",
             *(["--machine", machine] if machine else []), *more]
        )
        text = capsys.readouterr()
        run.said = text.err  # type: ignore[attr-defined]
        return status, json.loads(text.out) if text.out else {}

    yield run


def states(document: dict[str, Any]) -> dict[str, str]:
    return {p["case"]: p["state"] for p in document["points"]}


def test_every_case_is_run_once_and_reported(sweep: Sweep, launcher: Launcher,
                                             tmp_path: Path) -> None:
    status, document = sweep(ranks="1,2,4")
    assert status == 0
    ran = ["data-p1-b64", "data-p2-b64", "filter-p2-b64", "data-p4-b64", "filter-p4-b64"]
    assert launcher.ran == ran  # on one rank both strategies have one plan
    one = {p["case"]: p for p in document["points"]}
    assert (one["filter-p1-b64"]["same_as"] == "data-p1-b64"
            and one["filter-p1-b64"]["measured"] == one["data-p1-b64"]["measured"])
    assert set(states(document).values()) == {"done"}
    assert [one[case]["measured"]["speedup"] for case in ran] == pytest.approx([1, 2, 2, 4, 4])
    assert all(p["measured"]["efficiency"] == pytest.approx(1) for p in one.values())
    four = one["data-p4-b64"]
    assert four["measured"]["iteration_s"] == pytest.approx(0.02, rel=0.03)
    assert four["measured"]["epoch_s"] == pytest.approx(0.2, rel=0.03)
    assert (four["measured"]["iteration_p10_s"]
            < four["measured"]["iteration_s"]
            < four["measured"]["iteration_p90_s"])
    predicted, measured = four["predicted"]["iteration_s"], four["measured"]["iteration_s"]
    assert four["accuracy"] == pytest.approx(1 - abs(predicted - measured) / measured)
    parts = [
        four["measured"][name] for name in ("compute_s", "gradient_s", "other_communication_s")
    ]
    assert sum(parts) == pytest.approx(four["measured"]["iteration_s"]) and min(parts) > 0
    page = (tmp_path / "out/report.html").read_text()
    answer = "Fastest, as measured: filter on 4 ranks"
    assert answer in page and page.index(answer) < page.index("<table>")
    assert json.loads((tmp_path / "out/report.json").read_text()) == document
    launcher.ran.clear()
    again, same = sweep(ranks="1,2,4")
    assert again == 0 and launcher.ran == [] and same == document


def test_an_interrupted_sweep_goes_on(sweep: Sweep, launcher: Launcher, tmp_path: Path) -> None:
    launcher.fails["data-p2-b64"] = "interrupt"
    assert sweep()[0] == 130
    assert json.loads((tmp_path
                       / "out/cases/data-p2-b64/status.json").read_text())["state"] == "planned"
    launcher.fails.clear()
    launcher.ran.clear()
    assert sweep()[0] == 0
    assert launcher.ran == ["data-p2-b64", "filter-p2-b64"]


def test_failed_cases_say_why_and_run_again_only_on_request(
    sweep: Sweep, launcher: Launcher
) -> None:
    launcher.fails = {"data-p2-b64": "the loss is nan", "filter-p2-b64": "no room"}
    status, document = sweep()
    failed = "2 of 4 cases failed (data-p2-b64, filter-p2-b64); add --retry"
    assert status == 1 and failed in sweep.said  # type: ignore[attr-defined]
    assert "data-p2-b64  failed: exit status 3: the loss is nan" in sweep.said  # type: ignore[attr-defined]
    assert states(document)["data-p1-b64"] == "done"
    launcher.fails.clear()
    launcher.ran.clear()
    assert sweep()[0] == 1 and launcher.ran == []
    assert sweep("--retry")[0] == 0 and launcher.ran == ["data-p2-b64", "filter-p2-b64"]


def test_a_case_ended_for_its_time_says_so(sweep: Sweep, launcher: Launcher) -> None:
    launcher.fails = {"data-p1-b64": "late"}
    status, document = sweep("--time", "00:01:00", ranks="1")
    assert status == 1 and "it was ended after its time, 60 s" in document["points"][0]["reason"]


def test_more_sizes_may_be_added_but_nothing_else_changed(sweep: Sweep, launcher: Launcher) -> None:
    assert sweep(ranks="2")[0] == 0
    launcher.ran.clear()
    assert sweep(ranks="2,3")[0] == 0
    assert launcher.ran == ["data-p3-b64", "filter-p3-b64"]
    assert sweep("--steps", "31", ranks="2")[0] == 2
    assert "was run with steps 30, now it is 31; give another --out" in sweep.said  # type: ignore[attr-defined]


def test_what_cannot_run_is_listed_with_its_reason(sweep: Sweep, launcher: Launcher) -> None:
    status, document = sweep("--strategy", "data,grid:2x4,spatial,pipeline:40x1",
                             ranks="4,40,128")
    assert status == 0
    reasons = {p["case"]: p["reason"] for p in document["points"] if p["state"] == "skipped"}
    assert "8 ranks" in reasons["grid_2x4-p4-b64"] or "4" in reasons["grid_2x4-p4-b64"]
    assert "pipeline_40x1-p40-b64" in reasons
    assert reasons["data-p128-b64"].startswith("a batch of 64 cannot be cut into 128 parts")
    assert states(document)["data-p4-b64"] == "done" and not {
        c for c in launcher.ran if c in reasons
    }


def test_weak_scaling_keeps_each_rank_s_batch(sweep: Sweep, launcher: Launcher) -> None:
    launcher.seconds = 0.1
    status, document = sweep(kind="weak")
    assert status == 0
    two = next(p for p in document["points"] if p["case"] == "data-p2-b128")
    # twice the samples in half the time
    assert (two["batch"] == 128
            and two["measured"]["speedup"] == pytest.approx(4)
            and two["measured"]["efficiency"] == pytest.approx(2))


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--simulate", "4,8,64")])
def test_nodes_are_counted_as_predict_does(sweep: Sweep, more: tuple[str, ...]) -> None:
    """Also without Slurm, without a run, and for simulated sizes."""
    _, document = sweep("--machine", "p100x4x4", "--device", "gpu", *more,
                        ranks="1" if "--simulate" in more else "1,4,8,64")
    assert {p["ranks"]: p["nodes"] for p in document["points"]} == {1: 1, 4: 1, 8: 2, 64: 16}
    assert len({p["predicted"]["node_hours"] / p["nodes"] / p["predicted"]["epoch_s"]
                for p in document["points"] if p["predicted"]}) == 1


def test_a_dry_run_runs_nothing(sweep: Sweep, launcher: Launcher, tmp_path: Path) -> None:
    status, document = sweep("--dry-run", ranks="2")
    assert status == 0 and launcher.ran == []
    assert len(document["commands"]) == 2 and re.match(
        r"pretended -n 2 \S+ \S+child.py hpcpar run --plan ", document["commands"][0])
    assert set(states(document).values()) == {"planned"}
    status, document = sweep("--dry-run", "--launcher", "slurm", "--partition", "q", ranks="2,4")
    assert status == 0 and [Path(p).name for p in document["scripts"]] == ["p2.sh", "p4.sh"]
    assert "#SBATCH --partition=q" in Path(document["scripts"][0]).read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--strategy", ","), "--strategy is empty"),
     (("--strategy", "dota"), "did you mean 'data'"),
     (("--launcher", "slrum"), "did you mean 'slurm'"),
     (("--overlap", "al"), "argument --overlap: unknown value 'al'"),
     (("--input", "1x9x9"), "holds images 1x8x8, but the network takes 1x9x9"),
     (("--time", "soon"), "00:30:00"), (("--data", "none.h5"), "none.h5")],
)
def test_wrong_options_are_named(sweep: Sweep, options: tuple[str, str], said: str) -> None:
    assert sweep(*options)[0] == 2 and said in sweep.said  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cases/data-p2-b64/run.h5", "jobs/p2.sh", "calibration.log",
                                  "report.html"])
def test_files_that_no_sweep_wrote_stay(name: str, sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert sweep()[0] == 2 and "is not the folder of a sweep" in sweep.said  # type: ignore[attr-defined]
    assert path.read_text() == "mine" and not (tmp_path / "out/study.json").exists()


def test_a_folder_that_is_not_a_case_s_stays(sweep: Sweep, tmp_path: Path) -> None:
    """Also in the folder of a sweep."""
    assert sweep(ranks="1")[0] == 0
    path = tmp_path / "out/cases/data-p2-b64/plan.json"
    path.parent.mkdir()
    path.write_text("mine")
    assert sweep()[0] == 2 and "data-p2-b64 has files, but no status.json" in sweep.said  # type: ignore[attr-defined]
    assert path.read_text() == "mine"


def test_data_that_the_sweep_did_not_make_stay(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "out/data.h5"
    path.parent.mkdir()
    synthetic(str(path), (1, 8, 8), 10, 8)
    with h5py.File(path, "a") as f:
        f.attrs["source"] = "our microscope"
    before = path.read_bytes()
    assert sweep("--data", "")[0] == 2 and "has 8 samples, but the sweep needs" in sweep.said  # type: ignore[attr-defined]
    assert path.read_bytes() == before


def test_one_sweep_at_a_time(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with folder.alone(str(tmp_path / "out")):
        assert sweep()[0] == 2 and "is being written by another job" in sweep.said  # type: ignore[attr-defined]


def test_without_matplotlib_the_report_says_so_in_one_line(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> None:
        raise pictures.InputError(
            "plots need matplotlib; install it with: pip install 'hpcpar[plot]'")

    monkeypatch.setattr(report, "pyplot", missing)
    assert sweep(ranks="1")[0] == 0
    assert "no pictures: plots need matplotlib" in sweep.said  # type: ignore[attr-defined]
    page = (tmp_path / "out/report.html").read_text()
    assert "no pictures: plots need matplotlib" in page and "<img" not in page


def test_the_page_needs_nothing_outside_itself(sweep: Sweep, monkeypatch: pytest.MonkeyPatch,
                                               tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures come with the extra 'plot'")
    monkeypatch.undo()
    monkeypatch.setattr(launchers, "run", Launcher())
    assert sweep(ranks="1")[0] == 0
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 4
    assert not re.search(r'(?:src|href)="(?!data:)',
                         page) and "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert {p.name for p in (tmp_path / "out").glob("*.*g")} == {
        f"{name}.{kind}"
        for name in ("time", "efficiency", "parts", "node-hours")
        for kind in ("png", "svg")
    }


def test_the_log_s_last_line_is_ours_where_there_is_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert folder.last_line(str(log)) == ""
    log.write_text("a\n\n")
    assert folder.last_line(str(log)) == "a"
    log.write_text("hpcpar: first\nhpcpar: the reason\nrank 1 killed\n")
    assert folder.last_line(str(log)) == "the reason"


def test_synthetic_data_are_made_where_something_is_run(sweep: Sweep, tmp_path: Path) -> None:
    made = tmp_path / "out" / "data.h5"
    status, document = sweep("--dry-run", "--data", "", ranks="1,2", kind="weak")
    # an epoch of made data has no meaning
    assert status == 0 and not made.exists() and document["points"][0]["batches"] is None
    assert sweep("--data", "", ranks="1", kind="weak")[0] == 0 and made.stat().st_size > 256 * 64


def test_a_plan_that_does_not_fit_is_listed(sweep: Sweep, launcher: Launcher,
                                            tmp_path: Path) -> None:
    small = files.to_dict(files.load("local"))
    small["device"]["memory_bytes"] = 1000
    files.save(files.from_dict(small), str(tmp_path / "small.toml"))
    status, document = sweep("--machine", str(tmp_path / "small.toml"), ranks="2")
    assert status == 0 and launcher.ran == []
    assert all(re.fullmatch(r"needs .* per rank, the machine has 1 kB", p["reason"])
               for p in document["points"])


@pytest.mark.parametrize("option", ["--transport direct", "--graphs off"])
def test_gpu_options_without_a_gpu(option: str, sweep: Sweep) -> None:
    assert sweep(*option.split())[0] == 2
    told: Any = sweep
    assert f"{option} needs GPUs, but --device is cpu" in told.said


def test_the_report_of_a_folder_is_drawn_again(sweep: Sweep, launcher: Launcher, tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """A partial sweep has one, too; nothing is planned or run."""
    _, before = sweep()
    ran = list(launcher.ran)
    (tmp_path / "out" / "report.html").unlink()
    assert cli.main(["sweep", "report", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before and launcher.ran == ran
    assert (tmp_path / "out" / "report.html").exists()
    launcher.fails = {"data-p4-b64": "interrupt"}
    assert sweep(ranks="1,2,4")[0] == 130
    assert cli.main(["sweep", "report", str(tmp_path / "out"), "--json"]) == 0
    partial = json.loads(capsys.readouterr().out)
    assert states(partial)["data-p4-b64"] == "planned" and states(partial)["data-p2-b64"] == "done"
    assert cli.main(["sweep", "report", str(tmp_path)]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err


def test_weak_studies_with_parts_of_samples_are_kept(tmp_path: Path) -> None:
    spec = plans.NetworkSpec("lenet5", (1, 8, 8), 10)
    for batch in (Fraction(1, 4), 8):
        given = study.Study("weak", spec, files.load("p100x4x4"), (4, 8), ("data",), batch,
                            PLANNING, "d.h5", 64, 3, 1, "gpu", str(tmp_path), "nccl", "tf32",
                            nodes={"4": 1, "8": 2})
        study.save(given)
        assert study.load(str(tmp_path)) == given


@pytest.mark.parametrize(("kind", "device"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_a_machine_of_another_device_is_refused(sweep: Sweep, tmp_path: Path, kind: str,
                                                device: str) -> None:
    machine = replace(files.load("local"), quality={"origin": {"device": kind}})
    files.save(machine, str(tmp_path / "m.toml"))
    status, _ = sweep("--machine", str(tmp_path / "m.toml"), "--device", device)
    assert status == 2
    assert f"compute on {kind}s, but --device is {device}" in sweep.said  # type: ignore[attr-defined]
    if kind == "gpu":
        assert sweep("--machine", "p100x4x4")[0] == 2  # presets say it as well


def test_a_local_sweep_calibrates_unless_it_is_told_not_to(
        sweep: Sweep, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every number of ranks, for its plans, once."""
    measured: list[list[str]] = []

    def calibrated(words: list[str], log: str, limit_s: float | None) -> int | None:
        if "calibrate" not in words:
            return launcher(words, log, limit_s)
        measured.append(words)
        ranks = int(words[words.index("-n") + 1])
        made = replace(files.load("local"), compute={f"conv2d.forward x={ranks}": 0.1 * ranks})
        files.save(made, words[words.index("-o") + 1])
        return 0

    monkeypatch.setattr(launchers, "run", calibrated)
    for _ in range(2):
        status, document = sweep(machine="")
        assert status == 0 and set(states(document).values()) == {"done"}
        assert "not calibrated" not in sweep.said  # type: ignore[attr-defined]
    assert [words[1:3] for words in measured] == [["-n", "1"], ["-n", "2"]]
    assert [Path(word).parent.name for word in measured[1] if word.endswith("plan.json")] == [
        "data-p2-b64", "filter-p2-b64"]
    found = files.load(str(tmp_path / "out" / "machine.toml"))
    assert dict(found.compute) == {"conv2d.forward x=1": 0.1, "conv2d.forward x=2": 0.2}


def test_a_calibration_that_fails_says_why(sweep: Sweep, launcher: Launcher,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(words: list[str], log: str, limit_s: float | None) -> int | None:
        Path(log).write_text("hpcpar: no memory\n")
        return 1

    monkeypatch.setattr(launchers, "run", failing)
    assert sweep(machine="")[0] == 2
    said = sweep.said  # type: ignore[attr-defined]
    assert "calibration on 1 ranks: no memory; --machine names" in said


def test_the_machine_in_the_folder_is_the_default_and_guesses_are_said(
        sweep: Sweep, launcher: Launcher, tmp_path: Path) -> None:
    _, document = sweep(ranks="1")
    assert "on local," in document["title"]
    assert "local is not calibrated" in sweep.said  # type: ignore[attr-defined]
    (tmp_path / "other").mkdir()
    machine = replace(files.load("local"), name="mine", compute={"conv2d.forward x=1": 0.5})
    files.save(machine, str(tmp_path / "other" / "machine.toml"))
    _, document = sweep("--out", str(tmp_path / "other"), ranks="1", machine="")
    assert "on mine," in document["title"]
    assert "not calibrated" not in sweep.said  # type: ignore[attr-defined]


def test_efficiencies_that_are_too_good_are_said() -> None:
    def point(ranks: int, seconds: float) -> Point:
        parts = IterationParts(seconds, seconds, 0, 0)
        return Point(f"data-p{ranks}", "data", "data", ranks, 64, 1, 10, "done", predicted=parts,
                     measured=parts)

    said = " ".join(notes([point(1, 1.0), point(2, 0.4), point(4, 0.24)]))
    assert "efficiency of data-p2 is 125%" in said and "may have slowed data-p1" in said
    assert "efficiency of data-p4" not in said


def test_others_that_load_the_machine_are_said_before_the_first_run(
        sweep: Sweep, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcpar.api.sweep.slowdowns", lambda ranks: ["3 other processes run"])
    sweep(ranks="1")
    assert "note: 3 other processes run" in sweep.said  # type: ignore[attr-defined]
