"""Labels and targets per pixel with the extents of a network's output, which is not the image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import dataset
from hpcpar.data import loader as loaders
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.augment import Augmentation
from hpcpar.data.label_extents import LabelExtentOptions, remedy
from hpcpar.data.loader import Loader
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError
from hpcpar.plan.boxes import Box

N = 6


def whole(*extents: int) -> Box:
    return tuple((0, extent) for extent in extents)


def made(tmp_path: Path, image: tuple[int, ...], truth: np.ndarray, **options: Any) -> Any:
    """The stored labels or targets of a data file from two .npy files."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 9, (N, 2, *image), dtype=np.uint8))
    np.save(tmp_path / "y.npy", truth)
    path = str(tmp_path / "d.h5")
    from_numpy(path, str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
               ArrayOptions(test_fraction=0.0, **options))
    with h5py.File(path) as f:
        return f["targets" if truth.dtype.kind == "f" else "labels"][...]


@pytest.mark.parametrize(("given", "stride", "crop", "kept"), [
    ((16, 13), "2", (), np.s_[::2, ::2]), ((16, 13), "1x3", (), np.s_[:, ::3]),
    ((16, 13), (), "12x9", np.s_[2:14, 2:11]), ((16, 13), (), (13, 10), np.s_[1:14, 1:11]),
    ((16, 13), 2, "6x5", np.s_[2:14:2, 2:12:2]),
    ((7, 8, 6), "1x2x2", "5x4x3", np.s_[1:6, ::2, ::2]),
])
@pytest.mark.parametrize("form", ["labels", "one-hot", "last axis", "targets"])
def test_strides_and_crops_keep_the_labels_of_the_output(
        tmp_path: Path, given: tuple[int, ...], stride: Any, crop: Any, kept: Any,
        form: str) -> None:
    """The first of every few, as a padded convolution's windows are centered; and the center."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (N, *given))
    labels[(slice(None), *(0 for _ in given))] = 2
    wanted = labels[(slice(None), *kept)]
    source = labels
    if form == "one-hot":
        source = np.moveaxis(np.eye(3, dtype=int)[labels], -1, 1)
    elif form == "last axis":
        source = labels[..., None]
    elif form == "targets":
        source = rng.normal(size=(N, 2, *given))
        wanted = source[(slice(None), slice(None), *kept)].astype("f4")
    options = {"classes": 3} if form != "targets" else {}
    found = made(tmp_path, given, source, labels_stride=stride, labels_crop=crop, **options)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("image", "truth"), [
    ((6, 5), (3, 3)), ((6, 5), (12, 10)), ((6, 5), (1, 1)), ((4, 6, 5), (2, 3, 3)),
])
@pytest.mark.parametrize("targets", [False, True])
def test_arrays_may_have_the_extents_of_the_output(tmp_path: Path, image: tuple[int, ...],
                                                   truth: tuple[int, ...], targets: bool) -> None:
    rng = np.random.default_rng(1)
    given = (rng.normal(size=(N, 2, *truth)).astype("f4") if targets
             else rng.integers(0, 2, (N, *truth)))
    given[0, ..., 0] = 0
    assert np.array_equal(made(tmp_path, image, given), given)
    assert dataset.info(str(tmp_path / "d.h5"))["images"]["shape"] == [N, 2, *image]


def test_signals_of_another_length_need_to_be_named(tmp_path: Path) -> None:
    """A label for each of 5 classes or for each of 5 positions: whole numbers [N, 5] are one-hot
    unless an option says that they are labels per pixel.
    """
    source = tmp_path / "x.nc"
    xarray = pytest.importorskip("xarray", reason="NetCDF and Zarr need the extra 'xarray'")
    pytest.importorskip("h5netcdf", reason="NetCDF and Zarr need the extra 'xarray'")
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (N, 10))
    labels[0, :3] = 0, 1, 2
    xarray.Dataset({"x": (("sample", "time"), rng.normal(size=(N, 10))),
                    "y": (("sample", "time"), labels),
                    "z": (("sample", "coarse"), labels[:, ::2])}).to_netcdf(
                        source, engine="h5netcdf")
    for name, more in (("y", ["--labels-stride", "2"]), ("z", [])):
        path = tmp_path / f"{name}.h5"
        assert main(["data", "xarray", str(path), str(source), "--images", "x", "--labels", name,
                     "--test-fraction", "0", *more]) == 0
        with h5py.File(path) as f:
            assert np.array_equal(f["labels"][...], labels[:, ::2])


@pytest.mark.parametrize(("truth", "options", "message"), [
    (np.arange(N) % 2, {"labels_stride": 2}, "no labels or targets per pixel; drop --labels-strid"),
    (np.arange(N) % 2, {"labels_crop": 2}, "no labels or targets per pixel; drop --labels-crop"),
    (np.zeros((N, 6, 5), int), {"labels_stride": "2x2x2"}, "one number for each of 2 axes"),
    (np.zeros((N, 6, 5), int), {"labels_crop": "6"}, "one number for each of 2 axes"),
    (np.zeros((N, 6, 5), int), {"labels_stride": 2, "labels_crop": "4x3"}, "at most 3x3"),
    (np.zeros((N, 6, 5), int), {"labels_crop": "0x3"}, "not a number, or one per image axis"),
])
def test_options_that_do_not_fit_are_refused(tmp_path: Path, truth: np.ndarray,
                                             options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        made(tmp_path, (6, 5), truth, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "wanted", "said"), [
    ((16, 16), (8, 8), "--labels-stride 2"), ((15, 16), (5, 8), "--labels-stride 3x2"),
    ((16, 16), (12, 12), "--labels-crop 12x12"), ((7, 16, 16), (7, 8, 8), "--labels-stride 1x2x2"),
    ((16, 16), (32, 32), "numpy with labels of that size"),
    ((16, 16), (32, 8), "numpy with labels of that size"), ((31,), (16,), "--labels-stride 2"),
])
def test_the_remedy_makes_what_is_missing(given: tuple[int, ...], wanted: tuple[int, ...],
                                          said: str) -> None:
    text = remedy(given, wanted)
    assert text.endswith(said) and f"--labels-size {'x'.join(map(str, wanted))}," in text
    option, _, value = said.partition(" ")
    if option.startswith("--labels"):
        kept = LabelExtentOptions(**{option[2:].replace("-", "_"): value}).kept(given, "")
        assert np.zeros(given)[kept].shape == wanted


@pytest.fixture(params=[0, loaders.RESIDENT_BYTES], ids=["streamed", "resident"])
def resident_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "RESIDENT_BYTES", request.param)


@pytest.mark.parametrize(("shape", "extents"), [
    ((2, 9, 7), (5, 4)), ((2, 9, 7), (18, 14)), ((1, 4, 5, 6), (2, 3, 3)), ((3, 11), (6,)),
    ((3, 11), (2, 22)),
])
@pytest.mark.parametrize("targets", [0, 1])
@pytest.mark.usefixtures("resident_bytes")
def test_boxes_of_synthetic_labels_make_the_batch(tmp_path: Path, shape: tuple[int, ...],
                                                  extents: tuple[int, ...], targets: int) -> None:
    path = str(tmp_path / "p.h5")
    synthetic(path, shape, 4, 7, targets=targets, test_samples=3, pixels=True, extents=extents)
    output = extents if len(extents) > 1 else (1, *extents)
    truth = (*([targets] if targets else []), *output)
    with h5py.File(path) as f:
        known = f["test_targets" if targets else "test_labels"][...].reshape(3, *truth)
    sample = shape if len(shape) > 2 else (shape[0], 1, shape[1])
    for width in (0, output[-1] // 2), (output[-1] // 2, output[-1]):
        box = (*whole(3, *truth[:-1]), width)
        with Loader(path, whole(3, *sample), box, 3, "f4", split="test", shape=sample,
                    classes=targets or 4, extents=output) as loader:
            assert np.array_equal(loader.batch(0, 0)[1], known[..., slice(*width)])
    with pytest.raises(InputError, match="but the network's output is"):
        Loader(path, whole(3, *sample), whole(3, *truth), 3, split="test", shape=sample,
               extents=(output[0], output[1] + 1, *output[2:]))


@pytest.mark.usefixtures("resident_bytes")
def test_ignored_labels_of_the_output_count_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, (N, 3, 4))
    labels[labels == 2] = 255
    made(tmp_path, (6, 8), labels, ignore=255)
    with Loader(str(tmp_path / "d.h5"), whole(3, 2, 6, 8), ((0, 3), (1, 3), (0, 4)), 3,
                shape=(2, 6, 8), classes=2, extents=(3, 4), split="all") as loader:
        assert np.array_equal(loader.batch(0, 1)[1],
                              np.where(labels == 255, -1, labels)[3:, 1:])
        assert loader.counted(0, 1) == (3, pytest.approx((labels[3:] < 255).sum() / 12))


@pytest.mark.parametrize(("stored", "augment"), [
    ((1, 16, 16), (Augmentation.FLIP,)), ((1, 20, 20), (Augmentation.CROP,)),
])
def test_images_are_not_changed_where_labels_cannot_follow(
        tmp_path: Path, stored: tuple[int, ...], augment: tuple[Augmentation, ...]) -> None:
    path = str(tmp_path / "p.h5")
    synthetic(path, stored, 3, 4, pixels=True, extents=(8, 8))
    with pytest.raises(InputError, match="crops and flips move images and labels of one size tog"):
        Loader(path, whole(2, 1, 16, 16), whole(2, 8, 8), 2, shape=(1, 16, 16), extents=(8, 8),
               augment=augment)


def test_crops_need_labels_of_the_stored_images(tmp_path: Path) -> None:
    """Labels of the network's size tell nothing about a crop at a random position."""
    path = str(tmp_path / "p.h5")
    synthetic(path, (1, 20, 20), 3, 4, pixels=True, extents=(16, 16))
    with pytest.raises(InputError, match="holds labels 16x16, but the images are 20x20"):
        Loader(path, whole(2, 1, 16, 16), whole(2, 16, 16), 2, shape=(1, 16, 16),
               augment=(Augmentation.CROP,))


def test_the_command_says_the_size_of_labels(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "s.h5")
    words = ["data", "synthetic", path, "--input", "1x16x16", "--classes", "3", "--samples", "4"]
    assert main([*words, "--labels-size", "8x8"]) == 2
    assert "--labels-size needs --pixels: add --pixels" in capsys.readouterr().err
    assert main([*words, "--pixels", "--labels-size", "8"]) == 2
    assert "labels of 8 for images 1x16x16: give one number per image axis" in (
        capsys.readouterr().err)
    assert main([*words, "--pixels", "--labels-size", "8x8"]) == 0
    assert "3 classes of pixels 8x8," in capsys.readouterr().out
    assert main(["data", "info", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"]["shape"] == [4, 8, 8]


def test_synthetic_labels_show_the_patterns_of_the_images(tmp_path: Path) -> None:
    """Reduced or enlarged labels belong to the pixels that they cover."""
    for number, extents in enumerate(((16, 16), (8, 8), (32, 32))):
        synthetic(str(tmp_path / f"{number}.h5"), (1, 16, 16), 4, 3, pixels=True, extents=extents)
    equal, small, large = (h5py.File(tmp_path / f"{i}.h5")["labels"][...] for i in range(3))
    assert np.array_equal(small, equal[:, ::2, ::2]) and np.array_equal(equal, large[:, ::2, ::2])
