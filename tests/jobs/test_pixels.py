"""Losses over pixels, and signals, by whole jobs: data, plan, run, verify."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcpar.train import record_file
from tests.jobs.conftest import Run, summary

Make = Callable[..., Path]


@pytest.mark.parametrize(("name", "shape", "options", "ranks", "strategy"), [
    ("cells", "1x17x16", ("--pixels",), 4, "spatial"),
    ("cells", "1x17x16", ("--pixels",), 3, "filter"),
    ("waves", "2x61", (), 3, "spatial"),
])
def test_several_ranks_learn_as_one_does(name: str, shape: str, options: tuple[str, ...],
                                         ranks: int, strategy: str, hpcpar: Run, plan: Make,
                                         tmp_path: Path) -> None:
    """Also in an incomplete last batch of the held-out part."""
    data, network = tmp_path / "data.h5", f"tests.jobs.networks:{name}"
    made = hpcpar(1, "data", "synthetic", data, "--input", shape, "--classes", 3, *options,
                  "--samples", 48, "--test-samples", 10)
    assert made.returncode == 0, made.stderr
    words = ("--data", data, "--epochs", 8, "--rate", 0.05, "--seed", 1, "--json")
    one, several = (
        summary(hpcpar(count, "run", "--plan", plan(count, how, network=network, precision="fp64",
                                                    batch=8), *words))
        for count, how in ((1, "data"), (ranks, strategy)))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)
    assert several["losses"][-1] < 0.9 * several["losses"][0]
    assert several["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=1e-12)
    assert several["test_accuracy"] > 0.45
    if options:
        pixels = one["test_pixels"]
        assert several["test_pixels"] == pixels and len(pixels["dice"]) == 3
        assert several["train_pixels"] == one["train_pixels"] != pixels
        assert 1 / 3 <= pixels["most_frequent_share"] < 1 and 0 < pixels["mean_dice"] < 1


def test_a_run_reports_classes_that_the_accuracy_of_pixels_hides(
        hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """Almost all pixels belong to one class: an accuracy of 97% would mean nothing."""
    images = np.random.default_rng(0).integers(0, 255, (12, 1, 17, 16), np.uint8)
    labels = np.ones((12, 17, 16), np.int64)
    labels[:, :2, :4] = 0
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    data, out = tmp_path / "data.h5", tmp_path / "run.h5"
    made = hpcpar(1, "data", "numpy", data, tmp_path / "images.npy", tmp_path / "labels.npy",
                  "--test-fraction", 0.25, "--classes", 3)
    assert made.returncode == 0, made.stderr
    path = plan(2, "spatial", network="tests.jobs.networks:cells", batch=4)
    done = hpcpar(2, "run", "--plan", path, "--data", data, "--epochs", 1, "--rate", 0.5,
                  "--out", out)
    assert done.returncode == 0, done.stderr
    share = "(97.1% belong to class 1, mean Dice of the other classes 0."
    assert f"% accurate on held-out pixels {share}" in done.stdout
    assert f"% of pixels {share}" in done.stderr
    shown = hpcpar(1, "compare", out).stdout
    assert f"% of pixels {share}" in shown and "Dice by class: 0: 0." in shown
    assert "IoU by class: 0: 0." in shown


def test_ignored_pixels_do_not_count(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """16-bit images with masks in one .npz file, 255 where nobody knows: verified, and trained on
    several ranks as on one.
    """
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 3, (12, 17, 16)).astype("u1")
    masks[:, 8:, :9] = 255
    np.savez(tmp_path / "a.npz", images=rng.integers(0, 60000, (12, 17, 16), np.uint16),
             masks=masks)
    data, network = tmp_path / "data.h5", "tests.jobs.networks:cells"
    made = hpcpar(0, "data", "numpy", data, tmp_path / "a.npz", "--ignore", 255)
    assert made.returncode == 0, made.stderr
    path = plan(3, "spatial", network=network, precision="fp64", batch=4)
    done = hpcpar(3, "verify", "--plan", path, "--data", data)
    assert done.returncode == 0, done.stderr
    words = ("--data", data, "--epochs", 2, "--json")
    one, several = (summary(hpcpar(count, "run", "--plan", made, *words)) for count, made in (
        (1, plan(1, "data", network=network, precision="fp64", batch=4)), (3, path)))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)
    assert several["test_loss"] == pytest.approx(one["test_loss"], rel=1e-9)
    assert several["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=1e-12)


def test_ranks_may_lack_a_part_of_a_signal(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """A signal cut into more parts than it has columns trains as on one rank."""
    data, network = tmp_path / "data.h5", "tests.jobs.networks:short_waves"
    made = hpcpar(1, "data", "synthetic", data, "--input", "2x5", "--classes", 3, "--samples", 16,
                  "--test-samples", 6)
    assert made.returncode == 0, made.stderr
    one, several = (
        summary(hpcpar(count, "run", "--data", data, "--steps", 2, "--json", "--plan",
                       plan(count, how, network=network, precision="fp64", batch=8)))
        for count, how in ((1, "data"), (4, "spatial")))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)


def test_a_loss_over_pixels_is_verified(hpcpar: Run, plan: Make) -> None:
    path = plan(3, "spatial", network="tests.jobs.networks:cells", batch=8)
    done = hpcpar(3, "verify", "--plan", path, "--steps", 2)
    assert done.returncode == 0, done.stderr


def test_dice_is_trained_reported_and_resumed(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """A training run in two parts, on a cut image, leaves the same table and record as one run."""
    data, table, out = (tmp_path / name for name in ("data.h5", "run.csv", "run.h5"))
    made = hpcpar(1, "data", "synthetic", data, "--input", "1x17x16", "--classes", 3, "--pixels",
                  "--samples", 16, "--test-samples", 5)
    assert made.returncode == 0, made.stderr
    path = plan(3, "spatial", network="tests.jobs.networks:cells", precision="fp64", batch=8,
                loss="dice_cross_entropy", **{"label-smoothing": 0.1})
    words = ["--plan", path, "--data", data, "--rate", 0.05, "--schedule", "constant"]
    whole = summary(hpcpar(3, "run", *words, "--epochs", 2, "--json"))
    words += ["--checkpoint", tmp_path / "c.h5", "--out", out, "--metrics", table,
              "--tensorboard", tmp_path / "events"]
    for more in (), ("--resume", tmp_path / "c.h5"):
        done = hpcpar(3, "run", *words, "--epochs", 1 + bool(more), *more)
        assert done.returncode == 0, done.stderr
    with open(table, encoding="utf-8") as f:
        first, last = csv.DictReader(f)
    assert (first["step"], last["step"]) == ("2", "4")
    for part in ("train", "test"):
        pixels, each = whole[f"{part}_pixels"], (last[f"{part}_dice_{i}"] for i in range(3))
        assert [float(x) for x in each] == pytest.approx(pixels["dice"])
        assert float(last[f"{part}_iou"]) == pytest.approx(pixels["mean_iou"])
    assert float(last["loss"]) == pytest.approx(whole["loss"], rel=1e-9)
    counts = record_file.read(str(out)).train_counts
    assert counts is not None and counts[:, 0].sum(axis=1).tolist() == [16 * 17 * 16] * 2
    assert len(list((tmp_path / "events").iterdir())) == 2


def test_labels_have_the_extents_of_the_output(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """Those of the input are refused with a remedy that works: the run learns, and is verified."""
    data, network = tmp_path / "data.h5", "tests.jobs.networks:reduced"
    words = ("data", "synthetic", data, "--input", "1x16x16", "--classes", 3, "--pixels",
             "--samples", 48, "--test-samples", 10)
    assert hpcpar(1, *words).returncode == 0
    path = plan(3, "spatial", network=network, precision="fp64", batch=8)
    for command in ("run", "--plan", path), ("verify", "--plan", path):
        refused = hpcpar(3, *command, "--data", data)
        assert refused.returncode == 2
        assert ("holds labels 16x16, but the network's output is 8x8; make the file with: hpcpar "
                "data synthetic --labels-size 8x8, or hpcpar data numpy --labels-stride 2"
                ) in refused.stderr
    assert hpcpar(1, *words, "--labels-size", "8x8").returncode == 0
    assert hpcpar(3, "verify", "--plan", path, "--data", data).returncode == 0
    options = ("--data", data, "--epochs", 8, "--rate", 0.05, "--seed", 1, "--json")
    one, several = (summary(hpcpar(count, "run", "--plan", made, *options)) for count, made in (
        (1, plan(1, "data", network=network, precision="fp64", batch=8)), (3, path)))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)
    assert several["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=1e-12)
    assert several["test_accuracy"] > 0.45
