"""Making data files."""

from __future__ import annotations

import argparse
import builtins
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli import data
from hpcpar.errors import InputError
from hpcpar.train import dataset


def test_digits_hold_out_a_fifth_of_every_class(tmp_path: Path) -> None:
    path = str(tmp_path / "digits.h5")
    dataset.digits(path)
    with h5py.File(path) as f:
        images, labels, test = f["images"][...], f["labels"][...], f["test_labels"][...]
        assert images.shape[1:] == (1, 8, 8) and images.dtype == np.uint8 and labels.dtype == np.int64
        assert len(images) + len(f["test_images"]) == 1797
        share = np.bincount(test) / (np.bincount(test) + np.bincount(labels))
        assert np.all(abs(share - 0.2) < 0.005)
        normal = (images - f.attrs["mean"]) * f.attrs["scale"]
        assert abs(normal.mean()) < 1e-12 and abs(normal.std() - 1) < 1e-12
        whole = {(x.tobytes(), int(y)) for x, y in zip(images, labels, strict=True)}
        assert len(whole & {(x.tobytes(), int(y)) for x, y in zip(f["test_images"], test, strict=True)}) < 3  # next to no duplicates
    assert [p.name for p in tmp_path.iterdir()] == ["digits.h5"]


def test_digits_without_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError("No module named 'sklearn'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'hpcpar\[digits\]'"):
        dataset.digits(str(tmp_path / "x.h5"))


def test_synthetic_is_reproducible_and_learnable(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    seen: list[tuple[int, int]] = []
    dataset.synthetic(a, (3, 19, 33), 4, 200, 7, test_samples=100, progress=lambda *done: seen.append(done))
    dataset.synthetic(b, (3, 19, 33), 4, 200, 7, test_samples=100)
    assert seen[-1] == (300, 300)
    with h5py.File(a) as f, h5py.File(b) as g:
        assert np.array_equal(f["images"], g["images"]) and np.array_equal(f["labels"], g["labels"])
        x, y = f["images"][...].astype(float), f["labels"][...]
        centres = np.stack([x[y == k].mean(0) for k in range(4)])
        test = f["test_images"][...].astype(float)
        nearest = ((test[:, None] - centres) ** 2).sum((2, 3, 4)).argmin(1)
        assert (nearest == f["test_labels"][...]).mean() > 0.95
        normal = (x - f.attrs["mean"]) * f.attrs["scale"]
        assert abs(normal.mean()) < 0.2 and abs(normal.std() - 1) < 0.1


def test_synthetic_in_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_BLOCK_BYTES", 1000)
    dataset.synthetic(str(tmp_path / "a.h5"), (1, 10, 10), 3, 35)
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["images"].shape == (35, 1, 10, 10) and all(f["images"][i].any() for i in range(35))
        assert "test_images" not in f


def test_numpy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_BLOCK_BYTES", 700)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 200, (50, 2, 5, 7), dtype=np.uint8), np.repeat(np.arange(5), 10).astype(np.int32)
    images, labels, path = (str(tmp_path / name) for name in ("x.npy", "y.npy", "z.h5"))
    np.save(images, x)
    np.save(labels, y)
    dataset.from_numpy(path, images, labels, 0.2)
    with h5py.File(path) as f:
        train, test = f["images"][...], f["test_images"][...]
        assert np.array_equal(np.bincount(f["labels"]), [8] * 5) and np.array_equal(np.bincount(f["test_labels"]), [2] * 5)
        assert {r.tobytes() for r in train} | {r.tobytes() for r in test} == {r.tobytes() for r in x}
        assert all(np.array_equal(train[i], x[np.flatnonzero((x == train[i]).all((1, 2, 3)))[0]]) for i in range(40))
        assert np.allclose(f.attrs["mean"], train.mean((0, 2, 3))) and np.allclose(1 / f.attrs["scale"], train.std((0, 2, 3)))
    assert dataset.info(path)["classes"] == 5


def test_numpy_floats_of_one_channel_stay_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 4, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(6))
    dataset.from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), classes=9)
    with h5py.File(tmp_path / "z.h5") as f:
        assert f["images"].dtype == np.float32 and np.array_equal(f["images"][:, 0], x.astype("f4"))
        assert f.attrs["classes"] == 9 and f.attrs["mean"] == 0 and f.attrs["scale"] == 1


@pytest.mark.parametrize(("x", "y", "options", "message"), [
    (np.zeros((4, 2, 3, 3), "u1"), np.zeros(3, int), {}, "give 4 whole numbers"),
    (np.zeros((4, 2, 3, 3), "i4"), np.zeros(4, int), {}, r"give images \[N, C, H, W\]"),
    (np.zeros((4, 9), "u1"), np.zeros(4, int), {}, r"give images \[N, C, H, W\]"),
    (np.zeros((4, 2, 3, 3), "u1"), np.array([0, 1, -1, 0]), {}, "labels from -1 to 1"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"classes": 3}, "labels from 0 to 3"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"test_fraction": 1.5}, "held-out fraction 1.5"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"test_fraction": 0.9}, "leaves no image"),
])
def test_bad_numpy_files(tmp_path: Path, x: Any, y: Any, options: dict[str, Any], message: str) -> None:
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(InputError, match=message) as caught:
        dataset.from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("z.h5*"))


def test_unreadable_files(tmp_path: Path) -> None:
    missing, text = str(tmp_path / "none.npy"), tmp_path / "text.npy"
    text.write_text("not numbers")
    for path in (missing, str(text)):
        with pytest.raises(InputError, match=r"\.npy"):
            dataset.from_numpy(str(tmp_path / "z.h5"), path, path)
    with pytest.raises(InputError, match="No such file or directory"):
        dataset.synthetic(str(tmp_path / "no" / "place.h5"), (1, 2, 2), 2, 4)
    with pytest.raises(InputError, match="positive"):
        dataset.synthetic(str(tmp_path / "z.h5"), (1, 2, 2), 0, 4)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    data.add(parser.add_subparsers())
    path = str(tmp_path / "s.h5")

    def run(*words: str) -> str:
        args = parser.parse_args(["data", *words])
        assert args.run(args) == 0
        return capsys.readouterr().out

    assert run("synthetic", path, "--input", "2x6x5", "--classes", "3", "--samples", "9") == ""
    info = json.loads(run("info", path, "--json"))
    assert info["images"] == {"shape": [9, 2, 6, 5], "dtype": "uint8"} and info["classes"] == 3
    with pytest.raises(SystemExit):
        run("synthetic", path, "--input", "2x6")
    assert "is not an image shape" in capsys.readouterr().err
