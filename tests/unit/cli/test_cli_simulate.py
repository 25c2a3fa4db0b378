"""``hpcpar simulate``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

import hpcpar
from hpcpar.cli.main import main


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("plan") / "plan.json")
    hpcpar.plan("vgg16", 8, 64, "p100x4x4", "data", input="3x32x32", classes=16).save(path)
    return path


def test_the_text_has_times_and_links(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--plan", plan, "--jitter", "0.05", "--slow", "node1=1.2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("8 GPUs of p100x4x4, data: ")
    assert "(mean of 20, 90% between" in shown
    assert "more than predicted" in shown
    for words in ("slow ranks", "jitter", "computes most", "wait for longest",
                  "critical path", "busiest links"):
        assert words in shown


def test_on_few_ranks_it_agrees_with_predict(capsys: pytest.CaptureFixture[str],
                                             tmp_path: Path) -> None:
    """Also where a stage of a pipeline begins inside a node."""
    path = str(tmp_path / "plan.json")
    hpcpar.plan("lenet5", 6, 12, "p100x4x4", "pipeline:2x3", input="1x16x16").save(path)
    assert main(["simulate", "--plan", path]) == 0
    assert ", as predicted" in capsys.readouterr().out.splitlines()[0]
    assert hpcpar.simulate(path).to_json()["predicted_s"] == pytest.approx(
        hpcpar.predict(plan=path).predictions[0].iteration_s, rel=1e-9)


def test_json_and_csv_say_the_same(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for form in ("--json", "--csv"):
        assert main(["simulate", "--plan", plan, "--slow", "rank3=2", form]) == 0
        found[form] = capsys.readouterr().out
    document = json.loads(found["--json"])
    rows = list(csv.DictReader(io.StringIO(found["--csv"])))
    assert document["iteration_s"] == pytest.approx(
        document["predicted_s"] + sum(document["causes"].values()))
    assert len(rows) == len(document["each_rank"]) == 8
    assert [float(row["compute_s"]) for row in rows] == [
        rank["compute_s"] for rank in document["each_rank"]]
    for rank in document["each_rank"]:
        assert rank["compute_s"] + rank["exposed_s"] + rank["waiting_s"] == pytest.approx(
            document["iteration_s"])
    assert sum(step["sent_bytes"] for step in document["steps"]) == sum(
        rank["sent_bytes"] for rank in document["each_rank"])


def test_a_record_is_compared_and_drawn_like_a_measured_one(
        plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, trace = str(tmp_path / "sim.h5"), tmp_path / "t.json"
    assert main(["simulate", "--plan", plan, "--slow", "rank3=2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["simulate", "--plan", plan, "--slow", "rank3=2", "-o", record]) == 0
    run = hpcpar.compare(record).to_json()["runs"][0]
    assert run["measured_iteration_s"] == pytest.approx(document["iteration_s"])
    assert run["predicted_iteration_s"] == pytest.approx(document["predicted_s"])
    causes = [term["cause"] for term in run["unforeseen"]]
    assert "compute" in causes
    capsys.readouterr()
    assert main(["compare", record]) == 0
    assert "sim.h5 is a simulation" in capsys.readouterr().err
    assert main(["trace", record, "--ranks", "3", "-o", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    programs = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2}
    assert {name.split(" comm")[0] for name in programs} == {"rank 0", "rank 1", "rank 2"}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert len(spans) > 100


def test_the_busiest_links_are_named(plan: str) -> None:
    document = hpcpar.simulate(plan).to_json()
    rank, node = document["links"]
    assert (rank["level"], node["level"]) == ("node", "network")
    assert rank["unit"].startswith("rank") and node["unit"].startswith("node")
    assert 0 < node["busy_s"] < document["iteration_s"]


def test_measured_jitter_comes_from_the_calibration(plan: str) -> None:
    with pytest.raises(hpcpar.InputError, match="has no measured jitter; calibrate"):
        hpcpar.simulate(plan, jitter="measured")
    machine = replace(hpcpar.load_machine("p100x4x4"), quality={"compute": {"spread": 0.1349}})
    found, same = (hpcpar.simulate(plan, machine, jitter=jitter).to_json()["iterations_s"]
                   for jitter in ("measured", 0.1))
    assert found == pytest.approx(same) and len(set(found)) == 20


def test_a_plot_is_written(plan: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    assert main(["simulate", "--plan", plan, "--jitter", "0.1", "--plot", str(path)]) == 0
    assert path.stat().st_size > 10_000


def test_legends_do_not_cover_the_drawing(plan: str) -> None:
    pytest.importorskip("matplotlib")
    figure = hpcpar.simulate(plan, jitter=0.1).plot()
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize(("words", "told"), [
    (("--slow", "node9=2"), "this job has no unit"),
    (("--slow", "node0"), "not a number greater than 0"),
    (("--load", "nod=0.2"), "did you mean 'node'"),
    (("--jitter", "2"), "a number from 0 to 1"),
    (("--repeat", "0"), "whole number of at least 1"),
    (("--repeat", "5"), "--repeat needs --jitter"),
])
def test_impossible_simulations_are_refused(plan: str, words: tuple[str, str], told: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["simulate", "--plan", plan, *words])
    except SystemExit as err:
        status = int(str(err.code))
    assert status == 2
    assert told in capsys.readouterr().err


def test_other_jobs_load_slows_messages(plan: str) -> None:
    free, loaded = (hpcpar.simulate(plan, load=load) for load in (None, {"network": 0.5}))
    assert loaded.to_json()["iteration_s"] > free.to_json()["iteration_s"]
    assert loaded.to_json()["predicted_s"] > free.to_json()["predicted_s"]


def test_a_job_that_is_too_large_is_sent_to_predict() -> None:
    best = hpcpar.plan("lenet5", 1 << 18, 1 << 18, "cori-knl", "data")
    with pytest.raises(hpcpar.InputError, match="use hpcpar predict"):
        hpcpar.simulate(best)
