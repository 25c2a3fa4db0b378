"""Arrays as people have them: .npz files, 16 bits, ignored labels, one-hot, faults in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import arrays, dataset
from hpcpar.data import loader as loaders
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.augment import Augmentation
from hpcpar.data.dataset import NO_LABEL
from hpcpar.data.loader import Loader
from hpcpar.data.numpy_files import from_numpy
from hpcpar.errors import InputError
from hpcpar.kernels.numpy_backend import NumpyBackend

N = 10
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 2, 6, 5), dtype=np.uint8)
LABELS = np.arange(N) % 3
ALL = ArrayOptions(test_fraction=0.0)


def made(tmp_path: Path, images: Any = IMAGES, labels: Any = LABELS,
         options: ArrayOptions = ALL) -> str:
    """A data file from two .npy files."""
    paths = [str(tmp_path / name) for name in ("x.npy", "y.npy", "d.h5")]
    np.save(paths[0], images)
    np.save(paths[1], labels)
    from_numpy(paths[2], paths[0], paths[1], options)
    return paths[2]


def packed(tmp_path: Path, options: ArrayOptions | None = None, **content: Any) -> str:
    """A data file from a .npz file."""
    np.savez_compressed(tmp_path / "a.npz", **content)
    from_numpy(str(tmp_path / "d.h5"), str(tmp_path / "a.npz"), options=options)
    return str(tmp_path / "d.h5")


def stored(path: str, *names: str) -> list[Any]:
    with h5py.File(path) as f:
        return [f[name][...] for name in names]


# -- .npz --------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y"), ("X", "y"), ("data", "labels"),
                                   ("x_train", "y_train"), ("images", "targets")])
def test_a_npz_file_holds_both(tmp_path: Path, names: tuple[str, str]) -> None:
    path = packed(tmp_path, **{names[0]: IMAGES, names[1]: LABELS})
    x, y, held = stored(path, "images", "labels", "test_images")
    assert len(x) + len(held) == N and len(held) == 3
    assert {a.tobytes() for a in (*x, *held)} == {a.tobytes() for a in IMAGES}
    assert dataset.info(path)["source"] == f"NumPy files a.npz: '{names[0]}'"
    assert y.dtype == np.int64


def test_medmnist_keeps_its_held_out_part(tmp_path: Path) -> None:
    """Gray [N, H, W], labels [N, 1], three parts, of which val is the one held out."""
    parts = {"train": slice(0, 6), "val": slice(6, 8), "test": slice(8, 10)}
    path = packed(tmp_path, **{
        f"{part}_{kind}": of[some] for part, some in parts.items()
        for kind, of in (("images", IMAGES[:, 0]), ("labels", LABELS[:, None].astype("u1")))})
    x, y, test_x, test_y = stored(path, "images", "labels", "test_images", "test_labels")
    assert np.array_equal(x[:, 0], IMAGES[:6, 0]) and np.array_equal(y, LABELS[:6])
    assert np.array_equal(test_x[:, 0], IMAGES[6:8, 0]) and np.array_equal(test_y, LABELS[6:8])
    known = dataset.info(path)
    assert np.allclose(known["mean"], x.mean()) and known["classes"] == 3
    assert known["source"].endswith("'train_images', a.npz: held-out part 'val_images'")


def test_keras_files_have_a_test_part(tmp_path: Path) -> None:
    path = packed(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:3], y_test=LABELS[:3])
    assert [len(a) for a in stored(path, "images", "test_labels")] == [N, 3]


@pytest.mark.parametrize(("content", "message"), [
    ({"arr_0": IMAGES, "arr_1": LABELS}, "a.npz holds arr_0, arr_1, without clear names"),
    ({"images": IMAGES}, r"numpy.savez\(FILE, images=..., labels=...\)"),
    ({"images": IMAGES, "labels": LABELS, "targets": LABELS}, "without clear names for images"),
    ({}, "holds nothing"),
    ({"images": IMAGES, "labels": np.array([None] * N)}, "not a complete NumPy file of numbers"),
    ({"images": IMAGES, "labels": LABELS[:9]}, "a.npz: 'labels' holds int64 .*; give 10 whole"),
    ({"images": IMAGES, "labels": LABELS, "test_images": IMAGES},
     "a.npz holds test_images: the held-out part 'test' needs images and labels"),
])
def test_unclear_npz_files_are_refused(tmp_path: Path, content: dict[str, Any],
                                       message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        packed(tmp_path, **content)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("d.h5*"))


def test_npz_and_npy_are_told_apart(tmp_path: Path) -> None:
    path = packed(tmp_path, images=IMAGES, labels=LABELS)
    npz, npy = str(tmp_path / "a.npz"), str(tmp_path / "x.npy")
    np.save(npy, IMAGES)
    for words, message in (((npz, npy), "leave out"), ((npy, npz), "a.npz is a .npz file"),
                           ((npy,), "give the .npy file of their labels, too"),
                           ((str(tmp_path / "b.npz"),), "cannot read .*b.npz: No such file"),
                           ((str(tmp_path),), "cannot read .*: Is a directory")):
        with pytest.raises(InputError, match=message):
            from_numpy(path, *words)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:60] + b"\xff" * 30 + content[90:])
    with pytest.raises(InputError, match=r"is not a complete NumPy file of numbers") as caught:
        from_numpy(path, npz)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"test_images": IMAGES[:3, :, :5]}, "held-out part 'test_images' .*2x5x5 uint8.*make them"),
    ({"test_images": IMAGES[:3].astype("u2")}, "held-out part 'test_images' .*uint16"),
    ({"test_labels": LABELS[:2]}, "held-out part 'test_labels' holds int64 .*; give 3 whole"),
    ({"test_labels": LABELS[:3] + 5}, "held-out part 'test_labels' holds labels from 5 to 7; 3 "),
])
def test_faults_in_the_held_out_part_name_it(tmp_path: Path, changes: dict[str, Any],
                                             message: str) -> None:
    content = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES[:3],
               "test_labels": LABELS[:3]}
    with pytest.raises(InputError, match=message):
        packed(tmp_path, **content | changes)
    with pytest.raises(InputError, match=r"'test_images' is the held-out part; leave out --test-f"):
        packed(tmp_path, ArrayOptions(test_fraction=0.5), **content)


# -- images ------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["int16", "uint16", ">i2", ">u2"])
def test_16_bits_are_kept_and_normalized_when_read(tmp_path: Path, kind: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 300)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    images = RNG.integers(low, high, IMAGES.shape, endpoint=True).astype(kind)
    images[:, 1] = high  # a constant channel
    path = made(tmp_path, images)
    kept, = stored(path, "images")
    assert kept.dtype == np.dtype(kind).newbyteorder("=") and np.array_equal(kept, images)
    mean, std = images.astype(float).mean((0, 2, 3)), images[:, 0].astype(float).std()
    known = dataset.info(path)
    assert np.allclose(known["mean"], mean) and np.allclose(known["scale"], [1 / std, 1])
    with Loader(path, ((0, N), (0, 1), (2, 5), (0, 5)), (0, N), N, shuffle=False) as loader:
        found, _ = loader.batch(0, 0)
        out = np.empty(found.shape, "f4")
        NumpyBackend().normalize(found, loader.mean, loader.scale, out)
    assert found.dtype == kept.dtype
    want = (images[:, :1, 2:5].astype(float) - mean[0]) / std
    assert np.allclose(out, want, rtol=1e-5, atol=1e-5)


def test_sums_of_16_bits_do_not_overflow() -> None:
    statistics = dataset.ChannelStatistics(1)
    statistics.add(np.array([[[65535, 0]]], np.uint16))
    for _ in range(40):  # as if there were 2**41 pixels
        statistics.count, statistics.sums, statistics.squares = (
            2 * statistics.count, 2 * statistics.sums, 2 * statistics.squares)
    assert statistics.mean_and_scale() == {"mean": [32767.5], "scale": [1 / 32767.5]}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_images_that_are_not_finite_are_noticed(tmp_path: Path, bad: float,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 1000)
    images = RNG.normal(size=IMAGES.shape)
    images[7, 1, 2, 3] = bad
    with pytest.raises(InputError, match=r"x.npy: image 7 has NaN or infinite values"):
        made(tmp_path, images)
    assert not list(tmp_path.glob("d.h5*"))
    with pytest.raises(InputError, match=r"a.npz: held-out part 'test_images': image 7 has NaN"):
        packed(tmp_path, images=images[:5], labels=LABELS[:5], test_images=images,
               test_labels=LABELS)


# -- labels ------------------------------------------------------------------------------------
MASKS = RNG.integers(0, 3, (N, 6, 5))


@pytest.mark.parametrize(("given", "wanted"), [
    (LABELS[:, None], LABELS), (np.eye(3, dtype=int)[LABELS], LABELS),
    (np.eye(3, dtype=bool)[LABELS], LABELS), (MASKS[:, None], MASKS), (MASKS[..., None], MASKS),
    (np.moveaxis(np.eye(3, dtype="u1")[MASKS], -1, 1), MASKS), (MASKS > 1, MASKS > 1),
], ids=["[N, 1]", "one-hot", "bool", "[N, 1, H, W]", "[N, H, W, 1]", "one-hot pixels", "binary"])
def test_labels_with_an_extra_axis_are_read(tmp_path: Path, given: Any, wanted: Any) -> None:
    found, = stored(made(tmp_path, labels=given), "labels")
    assert found.dtype == np.int64 and np.array_equal(found, wanted)


def test_labels_that_are_not_one_hot_are_refused_by_that_word(tmp_path: Path) -> None:
    several = np.eye(3, dtype=int)[LABELS]
    several[4] = 1
    for labels in several, several * 2:
        with pytest.raises(InputError, match=r"y.npy holds 3 whole numbers .* not one-hot"):
            made(tmp_path, labels=labels)
    path = made(tmp_path, labels=np.eye(3)[LABELS])  # floating point: targets
    with pytest.raises(InputError, match="takes one-hot labels as whole numbers"):
        Loader(path, ((0, N), (0, 2), (0, 6), (0, 5)), (0, N), N)


@pytest.mark.parametrize("labels", [LABELS + 1, MASKS + 1])
def test_labels_that_start_at_1_are_noticed(tmp_path: Path, labels: Any) -> None:
    for classes in None, 3:
        with pytest.raises(InputError, match="holds labels from 1 to 3, and classes start at 0; "
                                             "renumber them with --first-label 1"):
            made(tmp_path, labels=labels, options=ArrayOptions(classes=classes))
    path = made(tmp_path, labels=labels, options=ArrayOptions(first_label=1, test_fraction=0.0))
    assert np.array_equal(stored(path, "labels")[0], labels - 1)
    assert dataset.info(path)["classes"] == 3
    path = made(tmp_path, labels=labels, options=ArrayOptions(first_label=0, test_fraction=0.0))
    assert np.array_equal(stored(path, "labels")[0], labels)
    assert dataset.info(path)["classes"] == 4
    pixels = ((0, 6), (0, 5)) if labels.ndim > 1 else ()
    with pytest.raises(InputError, match=r"they start at 1: .* --first-label 1"):
        Loader(path, ((0, N), (0, 2), (0, 6), (0, 5)), ((0, N), *pixels), N, classes=3)


@pytest.mark.parametrize(("labels", "ignored", "classes", "message"), [
    (np.where(MASKS == 2, 255, MASKS), None, None, "up to 1, and 255: .* --ignore 255, or keep"),
    (np.where(MASKS == 2, 7, MASKS), None, 3, "labels from 0 to 7; .* ignore with --ignore"),
    (np.where(LABELS == 2, -1, LABELS), None, None,
     "labels from -1 to 1, but the first class is 0; leave -1 out .* with --ignore -1"),
    (LABELS * 0, 0, None, "every label is the ignored one"),
    (RNG.normal(size=(N, 2)), 255, None, "targets, which have no classes; leave out --ignore"),
])
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: Any, ignored: int | None,
                                            classes: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        made(tmp_path, labels=labels, options=ArrayOptions(ignore=ignored, classes=classes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("resident_bytes", [0, 8 << 20])
@pytest.mark.parametrize("ignored", [255, -1, 0])
def test_an_ignored_label_does_not_count(tmp_path: Path, ignored: int, resident_bytes: int,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept as -1; each rank knows how much of a batch counts, wherever it lies."""
    monkeypatch.setattr(loaders, "RESIDENT_BYTES", resident_bytes)
    first = 1 if ignored == 0 else 0
    counts = RNG.random(MASKS.shape) < 0.6
    masks = np.where(counts, MASKS + first, ignored)
    path = made(tmp_path, labels=masks, options=ArrayOptions(
        ignore=ignored, first_label=first, test_fraction=0.0))
    assert np.array_equal(stored(path, "labels")[0], np.where(counts, MASKS, NO_LABEL))
    assert dataset.info(path)["ignore_label"] == NO_LABEL and dataset.info(path)["classes"] == 3
    rows = (4, 6)
    with Loader(path, ((0, 4), (0, 2), rows, (0, 5)), ((0, 4), rows, (0, 5)), 4, classes=3,
                split="all") as loader:
        for i in range(3):
            some = slice(4 * i, 4 * i + 4)
            _, labels = loader.batch(0, i)
            want = np.where(counts, MASKS, NO_LABEL)[some, 4:6]
            assert np.array_equal(labels[:len(want)], want)
            assert loader.counted(0, i)[1] == pytest.approx(counts[some].sum() / 30)


def test_common_ignored_labels_are_read(tmp_path: Path) -> None:
    """A file with an ``ignore_label`` of its own, as many masks are stored; also of samples."""
    path = made(tmp_path)
    with h5py.File(path, "r+") as f:
        f["labels"][3:5] = 255
        f.attrs["ignore_label"] = 255
    with Loader(path, ((0, N), (0, 2), (0, 6), (0, 5)), (0, N), N, classes=3,
                shuffle=False) as loader:
        assert np.array_equal(loader.batch(0, 0)[1], [*LABELS[:3], -1, -1, *LABELS[5:]])
        assert loader.counted(0, 0) == (N, 8)


def test_only_cropped_pixels_count(tmp_path: Path) -> None:
    """Ranks that see different parts of the same crops count the same labels."""
    masks = np.where(RNG.random(MASKS.shape) < 0.5, 255, MASKS)
    path = made(tmp_path, labels=masks, options=ArrayOptions(ignore=255, test_fraction=0.0))
    options: dict[str, Any] = {"shape": (2, 4, 3), "augment": [Augmentation.CROP], "seed": 2}
    with Loader(path, ((0, 4), (0, 2), (0, 4), (0, 3)), ((0, 4), (0, 4), (0, 3)), 4,
                **options) as whole, Loader(path, ((0, 4), (0, 2), (0, 4), (0, 1)),
                                            ((0, 4), (0, 4), (0, 1)), 4, **options) as part:
        for epoch, i in (0, 0), (0, 1), (1, 1):
            labels = whole.batch(epoch, i)[1]
            assert part.counted(epoch, i) == whole.counted(epoch, i)
            assert whole.counted(epoch, i)[1] == pytest.approx(
                (labels >= 0).sum() / 12)


def test_the_command_imports_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES.astype("u2"), masks=np.where(MASKS == 2, 255, MASKS))
    words = ["data", "numpy", str(tmp_path / "d.h5"), str(tmp_path / "a.npz")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*words, "--ignore", "255"]) == 0
    assert "8 + 2 held out images 2x6x5 uint16, 2 classes of pixels" in capsys.readouterr().out
    assert main([*words, "--ignore", "-1", "--classes", "256"]) == 0
