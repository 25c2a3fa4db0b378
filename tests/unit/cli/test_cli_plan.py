"""The planning commands: their documents, tables, files and errors."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.cli.main import COMMANDS, main
from hpcpar.network.builtin import NETWORKS
from hpcpar.plan.plan import load
from tests.limits import LIMIT_S
from tests.unit.cli.output import document, text

LENET = ["--network", "lenet5", "--ranks", "4", "--batch", "64"]


def test_networks_lists_builtin_networks(capsys: pytest.CaptureFixture[str]) -> None:
    listed = text(capsys, "networks")
    assert all(name in listed for name in NETWORKS) and "60965224" in listed
    assert "flatten" in text(capsys, "networks", "lenet5")
    assert {n["name"] for n in document(capsys, "networks")["networks"]} == set(NETWORKS)
    shown = document(capsys, "networks", "lenet5", "--input", "1x8x8")
    assert shown["input"] == [1, 8, 8]
    assert sum(layer["parameters"] for layer in shown["layers"]) == shown["parameters"]


def test_machines_lists_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cori-knl" in text(capsys, "machines") and "6 GB/s" in text(
        capsys, "machines", "cori-knl"
    )
    assert document(capsys, "machines", "cori-knl")["levels"][0]["alpha_s"] == 2e-6
    assert len(document(capsys, "machines")["machines"]) >= 2


def test_plan_finds_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    found = document(capsys, "plan", *LENET, "-o", str(path), "--show-schedule", "--samples", "640")
    assert found["fits"] and found["search_s"] > 0 and found["alternatives"]
    faster = [a for a in found["alternatives"] if a["iteration_s"] < found["iteration_s"]]
    assert all(a["ratio_low"] <= 1 <= a["ratio_high"] for a in faster if a["fits"])
    assert found["epoch_s"] == pytest.approx(10 * found["iteration_s"])
    assert [row["index"] for row in found["schedule"]] == list(range(len(found["schedule"])))
    assert load(str(path)).strategy == found["strategy"]
    again = document(capsys, "predict", "--plan", str(path), "--samples", "640")
    assert again["iteration_s"] == found["iteration_s"] and again["layers"] == found["layers"]
    shown = text(capsys, "plan", *LENET, "--strategy", "grid:2x2", "--show-schedule")
    assert "reduce_scatter" in shown and "allreduce" in shown and "needed by" in shown


def test_a_pipelines_schedule_is_shown_with_every_micro_batch(
        capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--strategy", "pipeline:2x2", "--microbatches", "3", "--show-schedule"]
    found = document(capsys, "plan", *LENET, *args)
    assert len(found["schedule"]) == len(found["steps"]) > 0
    assert {step["part"] for step in found["steps"]} == {0, 1, 2}
    waits_s = found["exposed_communication_s"] + found["bubble_s"]
    assert found["exposed_communication_s"] <= found["communication_s"]
    assert found["iteration_s"] == pytest.approx(found["compute_s"] + waits_s, rel=1e-12)
    assert "bubble" in text(capsys, "plan", *LENET, *args)


def test_predict_lists_several_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["predict", "--network", "alexnet", "--machine", "cori-knl", "--ranks", "4,8", "--batch",
            "4", "--strategy", "data,grid:*"]
    found = document(capsys, *args)
    assert [(p["strategy"], p["ranks"]) for p in found["predictions"]] == [
        ("data", 4), ("grid:1x4", 4), ("grid:2x2", 4), ("grid:4x1", 4), ("grid:2x4", 8),
        ("grid:4x2", 8), ("grid:8x1", 8),
    ]
    assert [(s["strategy"], s["ranks"]) for s in found["skipped"]] == [("data", 8), ("grid:1x8", 8)]
    shown = text(capsys, *args)
    assert "note: skipped grid:1x8 on 8 ranks" in shown and "grid:4x2" in shown


def test_predict_in_the_papers_accounting(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["predict", "--network", "alexnet", "--machine", "cori-knl", "--ranks", "512", "--batch",
            "2048", "--accounting", "paper"]
    data = document(capsys, *args, "--strategy", "data")
    assert data["overlap"] == "none"
    # Eq 4: eight layers of 2 (9 alpha + 511/512 W beta)
    assert data["communication_s"] == pytest.approx(
        2 * (8 * 9 * 2e-6 + 511 / 512 * 60965224 * 4 / 6e9)
    )
    grids = document(capsys, *args, "--strategy", "grid-fc:*")["predictions"]
    best = min(grids, key=lambda p: float(p["communication_s"]))
    assert best["strategy"] == "grid-fc:32x16"
    assert data["communication_s"] / best["communication_s"] == pytest.approx(8.71, abs=0.005)


def test_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "bars.png"
    args = ["predict", "--network", "alexnet", "--machine", "cori-knl", "--ranks", "8,16",
            "--batch", "64", "--strategy", "grid:*"]
    assert f"wrote {path}" in text(capsys, *args, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plna"], "did you mean 'plan'"),
        (["plan", "--network", "lenet", "--ranks", "4", "--batch", "8"], "did you mean 'lenet5'"),
        (["plan", *LENET, "--machine", "locl"], "did you mean 'local'"),
        (["plan", *LENET, "--strategy", "dta"], "did you mean 'data'"),
        (["plan", *LENET, "--strategy", "grid:2x3"], "is for 6 ranks, not 4"),
        (["plan", *LENET, "--strategy", "grid"], "needs a grid"),
        (["plan", *LENET, "--rank", "4"], "did you mean '--ranks'"),
        (["plan", *LENET, "--overlap", "ful"], "did you mean 'full'"),
        (["plan", *LENET, "--input", "28x28"], "CxHxW"),
        (["plan", *LENET, "--ranks", "0"], "at least 1"),
        (["plan", *LENET, "-o", "/nonexistent/plan.json"], "cannot write plan file"),
        (["plan", "--network", "alexnet", "--input", "3x8x8", "--ranks", "2", "--batch", "2"],
         "use larger images"),
        (["plan", "--network", "lenet5"], "--ranks"),
        (["predict", "--network", "lenet5", "--batch", "4"], "--ranks is missing"),
        (["predict", "--plan", "/nonexistent.json"], "cannot read plan file"),
        (["predict", "--plan", "x.json", "--ranks", "4"], "has no effect with --plan"),
        (["predict", *LENET, "--strategy", "data:*"], "takes no grid"),
        (["predict", *LENET, "--strategy", "gird:*"], "did you mean 'grid'"),
        (["predict", *LENET, "--accounting", "papre"], "did you mean 'paper'"),
        (["networks", "alexnt"], "did you mean 'alexnet"),
        (["machines", "none.toml"], "cannot read machine file"),
    ],
)
def test_errors_are_one_line(argv: list[str], message: str,
                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert message in out.err
    assert out.err.startswith("hpcpar: ") and out.err.count("\n") == 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0 and capsys.readouterr().out.startswith("hpcpar ")
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in COMMANDS)


def rows_of_layers(shown: str) -> list[list[str]]:
    """Layers, cut, ranks of each line of the table of layers."""
    lines = shown.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("layers of ")) + 2
    ends = ("layer-wise search", "memory at peak")
    return [re.split(r" {2,}", line)[:3]
            for line in itertools.takewhile(lambda line: not line.startswith(ends), lines[begin:])]


def test_layers_behind_a_cut_reduction_join_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--network", "alexnet", "--machine", "p100x4x4", "--ranks", "7", "--batch",
            "448", "--strategy", "layerwise"]
    cut = {row["name"]: row["config"] for row in document(capsys, *args)["layers"]}
    assert (cut["fc6"]["k"], cut["fc6"]["c"], cut["relu6"]["k"], cut["relu6"]["c"]) == (7, 1, 1, 7)
    shown = text(capsys, *args)
    assert rows_of_layers(shown) == [
        ["conv1 ... flatten", "n=7", "7"], ["fc6 ... fc8", "k=7, c=7", "7"], ["loss", "n=7", "7"]]
    assert "cuts no layer" not in shown


def test_stages_of_a_pipeline_are_shown_with_their_ranks(
    capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--network", "vgg16", "--machine", "h100x8", "--ranks", "8", "--batch", "64"]
    pairs = rows_of_layers(text(capsys, *args, "--strategy", "pipeline:4x2"))
    assert [row[1:] for row in pairs] == [
        ["n=2", "0-1"], ["n=2", "2-3"], ["n=2", "4-5"], ["n=2", "6-7"]]
    single = rows_of_layers(text(capsys, *args, "--strategy", "pipeline:8x1"))
    assert [row[1:] for row in single] == [["-", str(i)] for i in range(8)]
    firsts = [
        row["first_rank"] for row in document(capsys, *args, "--strategy", "pipeline:4x2")["layers"]
    ]
    assert firsts == sorted(firsts) and set(firsts) == {0, 2, 4, 6}


def test_a_plan_that_cuts_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """LeNet-5 on 64 fast ranks: any message takes longer than computing everything."""
    shown = text(capsys, "plan", "--network", "lenet5", "--machine", "h100x8", "--ranks", "64",
                 "--batch", "16", "--strategy", "layerwise")
    assert rows_of_layers(shown) == [["conv1 ... loss", "-", "1"]]
    assert "note: the plan cuts no layer: one rank alone would be as fast" in shown


def test_plan_and_predict_report_passed_limits_of_scaling(
        capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--network", "lenet5", "--ranks", "128", "--batch", "256", "--strategy", "filter"]
    note = ("note: filter on 128 ranks exceeds its limits: 6 filters in 128 parts leave 122 of "
            "128 ranks idle in conv1, relu1, pool1; 10 filters in 128 parts")
    assert note in text(capsys, "plan", *args) and note in text(capsys, "predict", *args)
    first = document(capsys, "plan", *args)["limits"][0]
    assert first == {"layer": "conv1", "axis": "c", "extent": 6, "parts": 128, "ranks": 128,
                     "idle_ranks": 122}
    args[-1] = "data,filter,grid:*"
    shown = text(capsys, "predict", *args)
    assert shown.count("note: filter on 128 ranks exceeds its limits") == 1
    assert "; so do grid:128x1 on 128, grid:64x2 on 128, " in shown
    assert "data on 128" not in shown
    args[-1] = "data"
    assert "exceeds its limits" not in text(capsys, "plan", *args)


@pytest.mark.parametrize("form", ["--json", "--csv", "--wide"])
def test_a_closed_pipe_is_quiet(form: str) -> None:
    """As in ``hpcpar networks --json | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hpcpar", "networks", "alexnet", form]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=LIMIT_S)
    os.close(write)
    assert done.returncode == 0 and done.stderr == b""


def test_the_cheapest_way_to_fit_is_proposed_and_an_unfit_plan_is_not_written(
        capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The activations are too much for the device; the plan that is proposed fits."""
    network = ["--network", "resnet50", "--machine", "abci-v100", "--ranks", "8", "--batch", "4096",
               "--strategy", "data"]
    file = str(tmp_path / "plan.json")
    assert main(["plan", *network, "-o", file]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert ("note: data needs 44.1 GB per rank, but the machine has 16 GB; cheapest remedy: "
            "--microbatches 4 --order 1f1b needs 11.4 GB" in shown)
    assert "plan.json is not written: data does not fit in memory" in shown
    assert not (tmp_path / "plan.json").exists()
    assert main(["plan", *network, "-o", file, "--force"]) == 0 and load(file).microbatches == 1
    capsys.readouterr()
    found = document(capsys, "plan", *network, "--recompute", "8", "-o", file)
    assert found["fits"] and load(file).recompute == 8
    plain = document(capsys, "predict", *network)
    assert (not plain["fits"]
            and plain["iteration_s"] < found["iteration_s"] < 1.4 * plain["iteration_s"])
    assert main(["predict", *network, "--recompute", "-1"]) == 2
    assert "'-1' is not a whole number of at least 0" in capsys.readouterr().err
