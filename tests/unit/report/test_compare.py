"""Simulated against measured."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.report.compare import compare, compare_one, to_json
from hpcpar.report.late_senders import clocked
from hpcpar.report.measured import busiest, view
from hpcpar.report.pictures.compare_plot import plot
from hpcpar.report.rows import PHASES, Times
from hpcpar.report.tables import percent, seconds
from hpcpar.report.tables.compare_table import recorded, show_rows
from hpcpar.train import record_file
from hpcpar.train.run_record import SIMULATED, RankInfo, RunRecord, StepInfo

STEPS = [StepInfo(0, "compute", "forward", "conv1", "conv1.forward", "forward"),
         StepInfo(1, "compute", "loss", "loss", "loss.forward", "forward"),
         StepInfo(2, "compute", "backward", "conv1", "conv1.backward", "backward"),
         StepInfo(3, "comm", "gradient", "conv1", "conv1.gradient.allreduce", "allreduce", "ring"),
         StepInfo(4, "compute", "update", "conv1", "conv1.update", "update")]
#: Slowest rank after the warm-up.
TRUE = np.array([0.010, 0.001, 0.020, 0.004, 0.002])


def predicted(steps: list[StepInfo], seconds: list[float]) -> dict[str, Any]:
    return {"network": "lenet5", "machine": "local", "strategy": "data", "memory_bytes": 1,
            "iteration_s": 0.030, "compute_s": 0.030, "exposed_communication_s": 0.0,
            "phases": {"gradient": {"exposed_communication_s": 0.0}}, "steps": [
                {"index": s.index, "label": s.label, "phase": s.phase, "layer": s.layer,
                 "is_comm": s.kind == "comm", "seconds": 0.5, "exposed_s": t, "messages": 0,
                 "sent_bytes": 0, "part": 0, "stage": 0, "start_s": 0.0, "end_s": 0.0,
                 "stream": "compute"} for s, t in zip(steps, seconds, strict=True)]}


def prediction() -> dict[str, Any]:
    return predicted(STEPS, [0.008, 0.001, 0.020, 0.003, 0.002])


def run(ranks: int = 3, iterations: int = 7, **changes: Any) -> RunRecord:
    """Times in which rank 1 is the slowest, every iteration a little different, and the first two
    are far off.
    """
    iteration = np.array([50, 9, *np.linspace(0.9, 1.1, iterations - 2)])
    rank = np.where(np.arange(ranks) == 1, 1.0, 0.6) if ranks > 1 else np.ones(1)
    times = rank[:, None, None] * iteration[None, :, None] * TRUE
    size = (ranks, 0, np.asarray(changes.get("seconds", times)).shape[2])
    values: dict[str, Any] = {
        "kept": np.zeros(0, int), "clock": np.zeros((ranks, 2, 3)), "begin_s": np.zeros(size[:2]),
        "start_s": np.zeros(size), "end_s": np.zeros(size), "wait_s": np.zeros(size),
        "plan": {"network": {"name": "lenet5"}, "strategy": "data", "batch": 8, "ranks": ranks},
        "steps": STEPS,
        "ranks": [RankInfo("n", r, 1, "cpu", 1) for r in range(ranks)],
        "seconds": times.astype("f4"), "iteration_s": times.sum(2) * 1.1,
        "sent_bytes": np.zeros((ranks, 5)), "messages": np.zeros((ranks, 5)),
        "loss": np.linspace(2, 1, iterations), "warmup": 2,
        "prediction": prediction(), "train_accuracy": np.full(3, np.nan),
        "test_accuracy": np.array([0.5, 0.75, np.nan]), "samples": 83}
    return RunRecord(**{**values, **changes})


def test_phases_and_layers_are_compared() -> None:
    row = compare_one(run())
    assert row.iteration.measured_s == pytest.approx(1.1 * TRUE.sum())
    assert row.iteration.predicted_s == 0.030
    assert row.epoch.measured_s == pytest.approx(10 * row.iteration.measured_s)
    assert row.iteration.accuracy == pytest.approx(1 - abs(0.030 - 1.1 * 0.037) / (1.1 * 0.037))
    assert list(row.phases) == list(PHASES) and list(row.layers) == ["conv1", "loss"]
    forward, gradient = row.phases["forward"], row.phases["gradient"]
    assert forward["compute"].measured_s == pytest.approx(0.010) and forward[
        "compute"].accuracy == pytest.approx(0.8)
    assert gradient["communication"].measured_s == pytest.approx(0.004) and gradient[
        "communication"].predicted_s == 0.003
    assert gradient["compute"].measured_s == 0 and gradient[
        "compute"].predicted_s == 0 and gradient["compute"].accuracy is None
    assert row.layers["conv1"]["compute"].measured_s == pytest.approx(0.032)
    assert row.rest_s == pytest.approx(0.1 * TRUE.sum(), rel=1e-5)
    assert row.compared == 5 and row.test_accuracy == 0.75 and row.name == "data, 3 ranks"


def test_steps_add_up_to_the_iteration_of_the_computing_rank() -> None:
    """Two ranks take turns in being held up, and the other waits: the largest of every step would
    count the time twice.
    """
    seconds = np.tile(TRUE, (2, 22, 1))
    for i in range(22):
        seconds[i % 2, i, 0] += 0.05
        seconds[1 - i % 2, i, 3] += 0.05
    seconds[0, 10] *= 100  # one extreme iteration
    record = run(ranks=2, iterations=22, seconds=seconds.astype("f4"), iteration_s=seconds.sum(2))
    times = view(record, busiest(record), clocked(record)).mean_s
    np.testing.assert_allclose(times, TRUE + np.array([0.05, 0, 0, 0, 0]), rtol=1e-5)


#: Steps of a pipeline: conv1 on ranks 0 and 1, fc on rank 2, each for two micro-batches, and the
#: messages between them.
STAGED = [StepInfo(0, "compute", "forward", "conv1", "conv1.forward", "forward"),
          StepInfo(1, "compute", "forward", "conv1", "conv1.forward", "forward"),
          StepInfo(2, "comm", "forward", "fc", "fc.forward.redistribute", "redistribute", "direct"),
          StepInfo(3, "comm", "forward", "fc", "fc.forward.redistribute", "redistribute", "direct"),
          StepInfo(4, "compute", "forward", "fc", "fc.forward", "forward"),
          StepInfo(5, "compute", "forward", "fc", "fc.forward", "forward")]


def test_parts_and_stages_add_up() -> None:
    """Micro-batches are summed; a rank on which a layer does not live does not thin its time; who
    waits for a stage counts.
    """
    one = np.array([[0.010, 0.011, 0.001, 0.001, 0, 0], [0.020, 0.021, 0.001, 0.001, 0, 0],
                    [0, 0, 0.030, 0.002, 0.004, 0.005]])
    seconds = np.repeat(one[:, None], 6, axis=1)
    steps = [STAGED[0], STAGED[2], STAGED[4]]
    row = compare_one(run(iterations=6, steps=STAGED, seconds=seconds.astype("f4"),
                          iteration_s=seconds.sum(2), warmup=0,
                          sent_bytes=np.zeros((3, 6)), messages=np.zeros((3, 6)),
                          prediction=predicted(steps, [0.030, 0.004, 0.008])))
    conv1, fc, forward = row.layers["conv1"], row.layers["fc"], row.phases["forward"]
    assert conv1["compute"].measured_s == pytest.approx(0.041) and conv1[
        "compute"].predicted_s == pytest.approx(0.030)
    assert fc["compute"].measured_s == pytest.approx(0.009) and fc[
        "compute"].predicted_s == pytest.approx(0.008)
    assert fc["communication"].measured_s == pytest.approx(0.032) and fc[
        "communication"].predicted_s == pytest.approx(0.004)
    assert forward["compute"].measured_s == pytest.approx(0.050) and forward[
        "compute"].predicted_s == pytest.approx(0.038)


def test_one_line_reports_ranks_that_share_cores(capsys: pytest.CaptureFixture[str]) -> None:
    own = compare_one(run(node_ranks=3, node_cores=4))
    shared = compare_one(run(node_ranks=3, node_cores=2))
    show_rows([own])
    assert "ranks share" not in capsys.readouterr().err
    show_rows([own, shared])
    assert capsys.readouterr().err.count("note: 3 ranks share 2 cores: times are less certain") == 1
    assert shared.to_json()["shares_cores"] and not own.to_json()["shares_cores"]


def test_accuracy_may_be_negative_and_is_shown_as_zero() -> None:
    assert Times(1.0,
                 3.5).accuracy == -1.5 and percent(-1.5) == "0.0%" and percent(0.9757) == "97.6%"
    assert Times(0.0, 1.0).accuracy is None


def test_an_incomplete_prediction_is_refused() -> None:
    short = prediction()
    del short["steps"][2]["exposed_s"]
    for damaged in ({}, short, prediction() | {"steps": None}):
        with pytest.raises(InputError, match=r"(is missing|expected a list.*); run again"):
            compare_one(run(prediction=damaged))


def test_steps_that_the_run_lacks_count_as_zero() -> None:
    more = predicted([*STEPS, StepInfo(5, "compute", "forward", "new", "new.forward", "forward")],
                     [*map(float, TRUE), 1.0])
    new = compare_one(run(prediction=more)).layers["new"]["compute"]
    assert (new.predicted_s, new.measured_s) == (1.0, 0.0)


def test_json(tmp_path: Path) -> None:
    rows = compare([run(), run(ranks=1)])
    data = json.loads(json.dumps(to_json(rows)))
    first = data["runs"][0]
    assert {"ranks", "batch", "strategy", "predicted_epoch_s", "measured_epoch_s", "accuracy",
            "phases"} <= set(first)
    accuracies = [row["accuracy"] for row in data["runs"]]
    assert data["mean_accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert first["phases"]["backward"]["compute"]["predicted_s"] == 0.02
    assert to_json([])["mean_accuracy"] is None
    assert to_json(compare([run(loss=np.full(7, np.nan))]))["runs"][0]["last_loss"] is None


def test_a_record_offers_its_iteration_as_an_anchor(capsys: pytest.CaptureFixture[str]) -> None:
    owt = prediction() | {"strategy": "owt"}
    first, second = rows = compare([run(), run(prediction=owt)])
    assert first.anchor == "3 ranks, batch 8, network lenet5, fp32: 40.7 ms"
    assert second.anchor == "3 ranks, batch 8, network lenet5, fp32, strategy owt: 40.7 ms"
    assert to_json(rows)["runs"][0]["anchor"] == first.anchor
    show_rows(rows)
    assert f"--measured '{first.anchor}'" in capsys.readouterr().out
    for each in rows:
        found = hpcpar.predict("lenet5", measured=each.anchor).predictions[0]
        assert found.iteration_s == pytest.approx(0.0407) and found.trust.basis == "measured"
    played = [RankInfo("n", r, 1, SIMULATED, 1) for r in range(3)]
    inference = prediction() | {"training": False}
    assert {row.anchor for row in compare([run(ranks=3, prediction=inference)])} == {""}
    assert compare_one(replace(run(), ranks=played)).anchor == ""


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(compare([run(path="a/one.h5"), run()]))
    text = capsys.readouterr().out
    assert text.startswith("Predictions of 2 runs are 73.7% accurate on average; the worst, one.h5")
    for word in ("one.h5", "accuracy", "conv1", "gradient", "40.7 ms", "80.0%", "mean", "5 of 7"):
        assert word in text


def test_times_have_fitting_units() -> None:
    assert [seconds(x) for x in (None, 0.0, 2e-6, 0.0123, 1.5, 12345.6)] == [
        "-", "0", "2 us", "12.3 ms", "1.5 s", "3 h 26 min"]


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "c.png"
    plot(compare([run(path="run1.h5"), run(ranks=1, loss=np.zeros(7))]), str(out))
    assert out.read_bytes()[:4] == b"\x89PNG" and [p.name for p in tmp_path.iterdir()] == ["c.png"]
    with pytest.raises(InputError, match=r"use a name that ends in \.png"):
        plot(compare([run()]), str(tmp_path / "c.what"))
    with pytest.raises(InputError, match="cannot write plot"):
        plot(compare([run()]), str(tmp_path / "no" / "c.png"))


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'hpcpar\[plot\]'"):
        plot([], str(tmp_path / "c.png"))


def test_the_command_shows_the_comparison(tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "run.h5")
    record_file.write(path, run())
    assert main(["compare", path, "--json"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["runs"][0]["file"] == "run.h5" and out.err == ""
    assert main(["compare", path]) == 0
    out = capsys.readouterr()
    assert "run.h5" in out.out and out.err == ""


def test_unrecorded_iterations_of_a_killed_run_are_one_line(
        capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(compare([run(missing=29)]))
    line, = (x for x in capsys.readouterr().out.splitlines() if "missing" in x)
    assert line.startswith("29 iterations are missing: the run ended before it recorded them")
    assert to_json(compare([run(missing=29)]))["runs"][0]["iterations_missing"] == 29
    show_rows(compare([run()]))
    assert "missing" not in capsys.readouterr().out


@pytest.mark.parametrize(("change", "lines"), [
    ({"done": 0}, []),
    ({"done": 66, "iterations_done": np.arange(66)}, ["recorded: 66 of the training's 66 iter"]),
    ({"done": 66, "iterations_done": np.arange(20, 66)},
     ["recorded: 46 of the training's 66 iterations", "iterations 1 to 20 are missing: "]),
    ({"done": 66, "missing": 19, "iterations_done": np.r_[:1, 20:66]},
     ["recorded: 47 of the training's 66 iterations", "19 iterations are missing: the run ended"]),
    ({"done": 1000, "iterations_done": np.arange(0, 1000, 10)},
     ["recorded: 1000 of the training's 1000 iterations, as a sample of 100"])])
def test_a_record_says_how_many_iterations_it_has(change: dict[str, Any],
                                                  lines: list[str]) -> None:
    numbers = change.get("iterations_done", np.arange(4))
    record = replace(run(), iteration_s=np.ones((2, len(numbers))), **change)
    said = recorded(record)
    assert len(said) == len(lines)
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=True))
