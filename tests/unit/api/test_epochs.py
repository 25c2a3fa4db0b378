"""Sizes of an epoch: given, of a data file, or of a data set that the answer names; else there is
no epoch and no cost. And a note on plans that no run executes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.data.synthetic import synthetic
from hpcpar.network.builder import Chain
from hpcpar.network.builtin import NETWORKS, network
from hpcpar.network.data_sets import data_set_of
from hpcpar.network.layers import Conv2d, SoftmaxCrossEntropy
from hpcpar.plan import plan as plans
from hpcpar.report.compare import compare_one
from hpcpar.report.tables import compare_table
from tests.unit.cli.output import document, text
from tests.unit.report.test_compare import run

SMALL = ["--network", "lenet5", "--input", "1x8x8", "--batch", "64"]
#: The data sets of the built-in networks at their usual sizes.
KNOWN = {"lenet5": "MNIST", "mlp": "MNIST", "cosmoflow": "CosmoFlow", "unet": None, "unet3d": None}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_know_their_data_sets(name: str) -> None:
    known = data_set_of(network(name))
    assert (known.name if known else None) == KNOWN.get(name, "ImageNet")


@pytest.mark.parametrize(("name", "shape", "classes"), [
    ("resnet50", None, 10), ("resnet50", (1, 224, 224), None), ("lenet5", (1, 8, 8), None),
    ("lenet5", None, 26), ("cosmoflow", (4, 256, 256, 256), None), ("unet", None, 1000),
])
def test_other_inputs_and_outputs_are_of_no_known_data_set(
        name: str, shape: tuple[int, ...] | None, classes: int | None) -> None:
    assert data_set_of(network(name, shape, classes)) is None


def test_a_class_for_each_pixel_is_not_imagenet() -> None:
    net = Chain("net", (3, 64, 64)).add(Conv2d, "conv", out_channels=1000, kernel=1)
    assert data_set_of(net.add(SoftmaxCrossEntropy, "loss").build()) is None


def test_default_data_sets_are_named() -> None:
    for result in (hpcpar.predict("resnet50", 4, 64, "p100x4x4"),
                   hpcpar.plan("resnet50", 4, 64, "p100x4x4", "data")):
        assert "an epoch of 1.2 M images (ImageNet) in " in result.answer
        found = result.to_json()
        assert (found["samples"], found["data_set"]) == (1_200_000, "ImageNet")
    assert "90 epochs of 60,000 images (MNIST) in " in hpcpar.predict(
        "lenet5", 4, 64, "p100x4x4", epochs=90).answer
    given = hpcpar.predict("resnet50", 4, 64, "p100x4x4", samples=5000)
    assert "an epoch of 5,000 images in " in given.answer and given.to_json()["data_set"] == ""


def test_without_a_known_size_there_is_no_epoch(capsys: pytest.CaptureFixture[str],
                                                tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    for command in (["plan", *SMALL, "--ranks", "2", "-o", plan],
                    ["predict", *SMALL, "--ranks", "2"], ["predict", "--plan", plan],
                    ["predict", *SMALL, "--ranks", "2", "--forward-only"]):
        found = document(capsys, *command)
        assert found["epoch_s"] is found["samples"] is None and found["data_set"] == ""
        shown = text(capsys, *command)
        assert "epoch" not in shown and "-hours" not in shown and "iteration" in shown
        assert document(capsys, *command, "--samples", "640")["epoch_s"] == pytest.approx(
            10 * found["iteration_s"])


def test_ranks_are_chosen_without_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", *SMALL, "--ranks", "1,2,4", "--machine", "p100x4x4", "--efficiency", "0.01"]
    found, known = (document(capsys, *words, *more) for more in ((), ("--samples", "640")))
    assert [s["run_s"] for s in found["scaling"]] == [None] * 3
    assert [s["node_hours"] for s in found["scaling"]] == [None] * 3
    assert found["choice"]["ranks"] == known["choice"]["ranks"]
    shown = text(capsys, *words)
    assert "node-hours" not in shown and " parallel efficiency; " in shown and ": , " not in shown


@pytest.mark.parametrize("words", [
    ["predict", *SMALL, "--ranks", "2", "--epochs", "90"],
    ["plan", *SMALL, "--ranks", "2", "--epochs", "90"],
    ["predict", *SMALL, "--ranks", "2", "--deadline", "1"],
    ["predict", *SMALL, "--ranks", "2", "--node-hours", "1"],
    ["proposal", *SMALL, "--ranks", "1,2", "-o", "page.md"],
])
def test_prices_of_unknown_epochs_are_refused(words: list[str], tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "needs the size of an epoch, which is unknown for this network: add --samples N" in err
    assert len([line for line in err.splitlines() if line.startswith("hpcpar: ")]) == 1
    assert not list(tmp_path.iterdir())


def test_a_proposal_names_the_data_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["proposal", "--network", "lenet5", "--machine", "p100x4x4", "--batch", "64", "--ranks",
             "1,2"]
    assert " of 1 epoch of MNIST on " in document(capsys, *words, "-o", str(tmp_path / "a.md"))[
        "answer"]
    assert "An epoch has 60,000 images (MNIST)." in (tmp_path / "a.md").read_text()
    assert main([*words, "--samples", "100", "-o", str(tmp_path / "b.md")]) == 0
    assert "An epoch has 100 images. " in (tmp_path / "b.md").read_text()


@pytest.mark.parametrize(("size", "samples", "named"), [
    ("1x8x8", None, "of unknown size: the data is synthetic; give --data"),
    ("1x28x28", 60_000, "60000 samples, MNIST"),
])
def test_synthetic_images_of_a_sweep_are_no_epoch(size: str, samples: int | None, named: str,
                                                  tmp_path: Path) -> None:
    """Their number follows from the batch."""
    words: dict[str, Any] = {"machine": "p100x4x4", "device": "gpu", "strategies": "data",
                             "input": size, "dry_run": True}
    result = hpcpar.sweep("strong", "lenet5", [1, 2], 64, str(tmp_path / "out"), **words)
    assert result.document["facts"]["epoch"] == named
    for point in result.document["points"]:
        expected = point["predicted"]
        assert point["batches"] == (samples and samples // 64)
        assert (expected["epoch_s"] is None) == (expected["node_hours"] is None) == (
            samples is None)
    page = (tmp_path / "out/report.html").read_text()
    assert ("node-hours" in page) == ("Cost of an epoch" in page) == (samples is not None)


def test_a_record_without_samples_has_no_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as of a loop in PyTorch."""
    row = compare_one(run(samples=0))
    found = row.to_json()
    assert row.epoch is found["predicted_epoch_s"] is found["measured_epoch_s"] is None
    assert {time["of"] for time in compare_table.csv_rows([row])} == {
        "iteration", "phase", "layer", "step"}
    known = compare_one(run())
    assert known.epoch is not None and known.to_json()["measured_epoch_s"] > 0
    for each, shown in ((row, False), (known, True)):
        compare_table.show_rows([each])
        assert ("an epoch of" in capsys.readouterr().out) == shown


def test_a_plan_that_no_run_executes_says_so(capsys: pytest.CaptureFixture[str],
                                             tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    words = ["plan", "--network", "lenet5", "--ranks", "2", "--batch", "64", "--machine",
             "dgx-a100", "--strategy", "data"]
    note = ("note: the rules of framework ddp can be planned and predicted, but not run; plan "
            "without --framework to run it")
    assert main([*words, "--framework", "ddp", "--json", "-o", path]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["strategy"] == "data" and err.count(note) == 1
    assert plans.load(path).framework == "ddp"
    for more in (["--framework", "ddp"], ["--precision", "amp", "-o", path]):
        assert main([*words, *more]) == 0
        assert "can be planned and predicted" not in capsys.readouterr().err
    hpcpar.plan("lenet5", 2, 64, "dgx-a100", "data", framework="ddp").save(path)
    assert note in capsys.readouterr().err


def test_a_data_file_says_what_a_node_reads(capsys: pytest.CaptureFixture[str],
                                            tmp_path: Path) -> None:
    """Its samples make an epoch, and its images of 16 bits count two bytes per value."""
    file, words = str(tmp_path / "scans.h5"), [*SMALL, "--ranks", "4", "--strategy", "data"]
    synthetic(file, (1, 8, 8), 10, 640)
    with h5py.File(file, "a") as f:
        images = f["images"][:]
        del f["images"]
        f["images"] = images.astype("u2")
    found = document(capsys, "plan", *words, "--data", file)
    assert found["epoch_s"] == pytest.approx(10 * found["iteration_s"])
    samples = 64 / found["iteration_s"]
    shown = text(capsys, "plan", *words, "--data", file)
    assert (f"reading {file}: a node needs {samples:,.0f} samples/s, "
            f"{2e-6 * 64 * samples:,.1f} MB/s") in shown
    assert main(["plan", "--network", "lenet5", *words[4:], "--data", file]) == 2
    assert "holds images 1x8x8, but the network takes 1x28x28" in capsys.readouterr().err
