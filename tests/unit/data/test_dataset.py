"""Creation of data files."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import dataset
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError


def test_digits_hold_out_a_fifth_of_every_class(tmp_path: Path) -> None:
    path = str(tmp_path / "digits.h5")
    dataset.digits(path)
    with h5py.File(path) as f:
        images, labels, test = f["images"][...], f["labels"][...], f["test_labels"][...]
        assert images.shape[1:] == (1, 8,
                                    8) and images.dtype == np.uint8 and labels.dtype == np.int64
        assert len(images) + len(f["test_images"]) == 1797
        share = np.bincount(test) / (np.bincount(test) + np.bincount(labels))
        assert np.all(abs(share - 0.2) < 0.005)
        normal = (images - f.attrs["mean"]) * f.attrs["scale"]
        assert abs(normal.mean()) < 1e-12 and abs(normal.std() - 1) < 1e-12
        whole = {(x.tobytes(), int(y)) for x, y in zip(images, labels, strict=True)}
        # hardly any duplicates
        assert len(whole
                   & {(x.tobytes(), int(y)) for x, y in zip(f["test_images"], test,
                                                            strict=True)}) < 3
    assert [p.name for p in tmp_path.iterdir()] == ["digits.h5"]


def test_digits_are_enlarged_by_repeating_pixels(tmp_path: Path) -> None:
    small, large = str(tmp_path / "8.h5"), str(tmp_path / "20.h5")
    dataset.digits(small)
    dataset.digits(large, 20)
    at = np.arange(20) * 8 // 20
    with h5py.File(small) as a, h5py.File(large) as b:
        assert b["images"].shape[1:] == (1, 20, 20)
        assert np.array_equal(b["test_images"], a["test_images"][...][:, :, at][..., at])


def test_digits_need_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    synthetic(a, (3, 19, 33), 4, 200, 7, test_samples=100, progress=lambda *done: seen.append(done))
    synthetic(b, (3, 19, 33), 4, 200, 7, test_samples=100)
    assert seen[-1] == (300, 300)
    with h5py.File(a) as f, h5py.File(b) as g:
        assert np.array_equal(f["images"], g["images"]) and np.array_equal(f["labels"], g["labels"])
        x, y = f["images"][...].astype(float), f["labels"][...]
        centers = np.stack([x[y == k].mean(0) for k in range(4)])
        test = f["test_images"][...].astype(float)
        nearest = ((test[:, None] - centers) ** 2).sum((2, 3, 4)).argmin(1)
        assert (nearest == f["test_labels"][...]).mean() > 0.95
        normal = (x - f.attrs["mean"]) * f.attrs["scale"]
        assert abs(normal.mean()) < 0.2 and abs(normal.std() - 1) < 0.1


def test_synthetic_in_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcpar.data.synthetic.BLOCK_BYTES", 1000)
    synthetic(str(tmp_path / "a.h5"), (1, 10, 10), 3, 35)
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["images"].shape == (35, 1, 10, 10) and all(f["images"][i].any() for i in range(35))
        assert "test_images" not in f


@pytest.mark.parametrize("shape", [(2, 11, 8, 13), (3, 16, 9)])
def test_synthetic_targets_are_learnable(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A linear readout of held-out images recovers the monotonic target function."""
    path = str(tmp_path / "t.h5")
    synthetic(path, shape, 5, 300, 3, targets=2, test_samples=100)
    with h5py.File(path) as f:
        assert f["images"].shape == (300, *shape) and f["images"].dtype == np.uint8
        assert f["targets"].shape == (300,
                                      2) and f[
            "targets"].dtype == np.float32 and "labels" not in f and "classes" not in f.attrs
        assert np.ptp(f["targets"], axis=0).min() > 1.9 and np.abs(f["targets"][...]).max() <= 1
        x, test = (f[name][...].astype(float).reshape(-1, int(np.prod(shape)))
                   for name in ("images", "test_images"))
        normal = (x - f.attrs["mean"]) * f.attrs["scale"]
        assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
        y, expected = (np.arccos(f[name][...]) for name in ("targets", "test_targets"))
        found = test @ ((x - x.mean(0)).T @ (y - y.mean(0)))
        assert all(np.corrcoef(found[:, k], expected[:, k])[0, 1] > 0.95 for k in range(2))
    info = dataset.info(path)
    assert info["test_targets"] == {"shape": [100, 2], "dtype": "float32"} and "labels" not in info


def test_numpy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcpar.data.arrays.BLOCK_BYTES", 700)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 200, (50, 2, 5, 7), dtype=np.uint8),
            np.repeat(np.arange(5), 10).astype(np.int32))
    images, labels, path = (str(tmp_path / name) for name in ("x.npy", "y.npy", "z.h5"))
    np.save(images, x)
    np.save(labels, y)
    from_numpy(path, images, labels)
    with h5py.File(path) as f:
        train, test = f["images"][...], f["test_images"][...]
        assert np.array_equal(np.bincount(f["labels"]),
                              [8] * 5) and np.array_equal(np.bincount(f["test_labels"]), [2] * 5)
        assert {r.tobytes() for r in train} | {r.tobytes() for r in test} == {
            r.tobytes() for r in x}
        assert all(np.array_equal(train[i], x[np.flatnonzero((x == train[i]).all((1, 2, 3)))[0]])
                   for i in range(40))
        assert np.allclose(f.attrs["mean"], train.mean((0, 2, 3))) and np.allclose(
            1 / f.attrs["scale"], train.std((0, 2, 3)))
    assert dataset.info(path)["classes"] == 5


def test_numpy_floats_of_one_channel_stay_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 4, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(6))
    from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
               ArrayOptions(classes=9, test_fraction=0.0))
    with h5py.File(tmp_path / "z.h5") as f:
        assert f["images"].dtype == np.float32 and np.array_equal(f["images"][:, 0], x.astype("f4"))
        assert f.attrs["classes"] == 9 and f.attrs["mean"] == 0 and f.attrs["scale"] == 1


@pytest.mark.parametrize("y", [np.random.default_rng(1).normal(size=(20, 3)), np.arange(20.0)])
def test_numpy_volumes_and_targets(tmp_path: Path, y: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, (20, 2, 3, 4, 5), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
               ArrayOptions(test_fraction=0.25))
    with h5py.File(tmp_path / "z.h5") as f:
        pairs = {(a.tobytes(), b.tobytes()) for p in ("", "test_")
                 for a, b in zip(f[f"{p}images"], f[f"{p}targets"], strict=True)}
        assert pairs == {(a.tobytes(), b.tobytes())
                         for a, b in zip(x, y.astype("f4").reshape(20, -1), strict=True)}
        assert len(f["test_targets"]) == 5 and f.attrs["mean"].shape == (2,)
        assert np.allclose(f.attrs["mean"], f["images"][...].mean((0, 2, 3, 4)))


@pytest.mark.parametrize("image", [(16, 20), (5, 6, 7)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_arrays_with_channels_last_are_noticed(tmp_path: Path, image: tuple[int, ...],
                                               channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 99, (6, *image, channels), dtype=np.uint8)
    images, labels, out = (str(tmp_path / name) for name in ("x.npy", "y.npy", "z.h5"))
    np.save(images, x)
    np.save(labels, np.arange(6))
    with pytest.raises(InputError, match=f"store its {channels} channels first with --channels-la"):
        from_numpy(out, images, labels)
    from_numpy(out, images, labels, ArrayOptions(test_fraction=0.0), channels_last=True)
    with h5py.File(out) as f:
        assert np.array_equal(f["images"], np.moveaxis(x, -1, 1))
        assert f.attrs["mean"].shape == (channels,)
    from_numpy(out, images, labels, ArrayOptions(test_fraction=0.0), channels_last=False)
    with h5py.File(out) as f:
        assert np.array_equal(f["images"], x)


def test_narrow_images_do_not_count_as_channels_last(tmp_path: Path) -> None:
    for shape in (3, 16, 4), (16, 4, 4), (1, 5, 1):
        np.save(tmp_path / "x.npy", np.zeros((6, *shape), "u1"))
        np.save(tmp_path / "y.npy", np.arange(6))
        from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
                   ArrayOptions(test_fraction=0.0))
        assert dataset.info(str(tmp_path / "z.h5"))["images"]["shape"] == [6, *shape]
    with pytest.raises(InputError, match="give images"):
        np.save(tmp_path / "x.npy", np.zeros((6, 5, 5), "u1"))
        from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
                   channels_last=True)


@pytest.mark.parametrize(("x", "y", "options", "message"), [
    (np.zeros((4, 2, 3, 3), "u1"), np.zeros(3, int), {}, "give 4 whole numbers"),
    (np.zeros((4, 2, 3, 3), "u1"), np.zeros((3, 2)), {}, r"floating-point numbers \[4, outputs\]"),
    (np.zeros((4, 2, 3, 3), "u1"), np.zeros((4, 2)), {"classes": 3}, "leave out --classes"),
    (np.zeros((4, 2, 3, 3), "u1"), np.full((4, 2), np.nan), {}, "not finite"),
    (np.zeros((4, 2, 3, 3, 3, 3), "u1"), np.zeros(4, int), {}, r"volumes \[N, C, D, H, W\]"),
    (np.zeros((4, 2, 3, 3), "c8"), np.zeros(4, int), {}, r"give images \[N, C, H, W\]"),
    (np.zeros((4, 9), "u1"), np.zeros(4, int), {}, r"give images \[N, C, H, W\]"),
    (np.zeros((4, 2, 3, 3), "u1"), np.array([0, 1, -1, 0]), {}, "labels from -1 to 1"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"classes": 3}, "labels from 0 to 3"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"test_fraction": 1.5}, "test_fraction"),
    (np.zeros((4, 2, 3, 3), "u1"), np.arange(4), {"test_fraction": 0.9}, "leaves no image"),
])
def test_bad_numpy_files_are_refused(tmp_path: Path, x: Any, y: Any, options: dict[str, Any],
                                     message: str) -> None:
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(InputError, match=message) as caught:
        from_numpy(str(tmp_path / "z.h5"), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
                   ArrayOptions(**options))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("z.h5*"))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    missing, text = str(tmp_path / "none.npy"), tmp_path / "text.npy"
    text.write_text("not numbers")
    for path in (missing, str(text)):
        with pytest.raises(InputError, match=r"\.npy"):
            from_numpy(str(tmp_path / "z.h5"), path, path)
    with pytest.raises(InputError, match="No such file or directory"):
        synthetic(str(tmp_path / "no" / "place.h5"), (1, 2, 2), 2, 4)
    with pytest.raises(InputError, match="positive"):
        synthetic(str(tmp_path / "z.h5"), (1, 2, 2), 0, 4)


def test_the_command_makes_and_describes_data(tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "s.h5")

    def run(*words: str) -> str:
        assert main(["data", *words]) == 0
        return capsys.readouterr().out

    made = run("synthetic", path, "--input", "2x6x5", "--classes", "3", "--samples", "9")
    assert made == f"{path}: 9 images 2x6x5 uint8, 3 classes, synthetic, seed 0, 0.0 MB\n"
    info = json.loads(run("info", path, "--json"))
    assert info["images"] == {"shape": [9, 2, 6, 5], "dtype": "uint8"} and info["classes"] == 3
    made = run("synthetic", path, "--input", "2x6x5x4", "--targets", "3", "--samples", "9")
    assert "9 images 2x6x5x4 uint8, 3 targets, synthetic" in made
    assert run("info", path) == made
    assert run("info", path, "--csv").splitlines()[1].startswith(path)
    for words, message in (("--input", "2x"),
                           "is not an image shape"), (("--classes", "3", "--targets", "4"),
                                                      "not allowed with"):
        assert main(["data", "synthetic", path, *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [
    ({"images": np.zeros((3, 1, 2, 2), "u1")}, "no datasets 'images' and 'labels'"),
    ({"labels": np.zeros(3, int)}, "no datasets 'images' and 'labels'"),
    ({"images": np.zeros((3, 1, 2, 2), "u1"), "labels": np.zeros(2, int)}, "not 3 whole numbers"),
    ({"images": np.zeros((3, 1, 2, 2), "u1"), "targets": np.zeros(3)},
     r"not floating-point numbers \[3, outputs\]"),
    ({"images": np.zeros((3, 2), "u1"), "labels": np.zeros(3, int)}, "not uint8, int16, uint16 or"),
    ({"images": np.zeros((3, 1, 2, 2), "u1"), "labels": np.zeros(3, int),
      "test_images": np.zeros((3, 1, 2, 2), "u1")}, "no held-out part"),
])
def test_info_on_damaged_files(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = str(tmp_path / "d.h5")
    with h5py.File(path, "w") as f:
        for name, value in content.items():
            f[name] = value
    with pytest.raises(InputError, match=message) as caught:
        dataset.info(path)
    assert path in str(caught.value) and "make it with: hpcpar data" in str(
        caught.value) and "\n" not in str(caught.value)
