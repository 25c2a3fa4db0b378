"""Labels and targets of pixels, and signals: made, read box by box, and refused where they do not
fit.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import dataset
from hpcpar.data import loader as loaders
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.augment import Augmentation
from hpcpar.data.loader import NO_LABEL, Loader
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError
from hpcpar.plan.boxes import Box, Interval


def whole(*extents: int) -> Box:
    return tuple((0, extent) for extent in extents)


@pytest.fixture(params=[0, loaders.RESIDENT_BYTES], ids=["streamed", "resident"])
def resident_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "RESIDENT_BYTES", request.param)


@pytest.mark.parametrize("shape", [(2, 9, 7), (1, 4, 5, 6), (3, 11)])
@pytest.mark.parametrize("targets", [0, 1])
@pytest.mark.usefixtures("resident_bytes")
def test_boxes_of_pixels_make_the_batch(tmp_path: Path, shape: tuple[int, ...],
                                        targets: int) -> None:
    path = str(tmp_path / "p.h5")
    synthetic(path, shape, 4, 7, targets=targets, test_samples=3, pixels=True)
    name = "targets" if targets else "labels"
    image = shape[1:] if len(shape) > 2 else (1, *shape[1:])
    truth = (*([targets] if targets else []), *image)
    with h5py.File(path) as f:
        assert f[name].shape == (7, *([targets] if targets else []), *shape[1:])
        known = f[f"test_{name}"][...].reshape(3, *truth)
        assert len(np.unique(known)) > 1
    sample = (shape[0], *image)
    for width in (0, image[-1] // 2), (image[-1] // 2, image[-1]):
        box = (*whole(2, *truth[:-1]), width)
        with Loader(path, whole(2, *sample), box, 2, "float64", split="test", shape=sample,
                    classes=targets or 4) as loader:
            for index in range(2):
                images, found = loader.batch(0, index)
                assert images.shape == (2, *sample)
                count = 2 - index
                want = known[2 * index:2 * index + count, ..., slice(*width)]
                np.testing.assert_array_equal(found[:count], want.astype(found.dtype))
                empty = found[count:]
                assert np.isnan(empty).all() if targets else (empty == NO_LABEL).all()


@pytest.mark.parametrize("augment", [(), ("crop", "flip")], ids=["plain", "augmented"])
@pytest.mark.parametrize(("row", "columns"), [((0, 0), (0, 3)), ((1, 1), (0, 3)), ((0, 1), (3, 3)),
                                              ((1, 1), (0, 0)), ((0, 1), (1, 3))])
@pytest.mark.usefixtures("resident_bytes")
def test_empty_boxes_of_signals(tmp_path: Path, augment: tuple[str, ...], row: Interval,
                                columns: Interval) -> None:
    """A signal cut into more parts than it has rows or columns leaves ranks without any."""
    path = str(tmp_path / "p.h5")
    synthetic(path, (2, 5 if augment else 3), 4, 8, pixels=True)
    box = (*whole(8, 2), row, columns)
    with Loader(path, box, ((0, 8), row, columns), 8, shape=(2, 1, 3), classes=4,
                augment=[Augmentation(name) for name in augment]) as loader:
        images, labels = loader.batch(0, 0)
    assert images.shape == (8, 2, row[1] - row[0], columns[1] - columns[0])
    assert labels.shape == (8, *images.shape[2:])


@pytest.mark.usefixtures("resident_bytes")
def test_labels_of_pixels_are_checked(tmp_path: Path) -> None:
    path = str(tmp_path / "p.h5")
    synthetic(path, (1, 4, 4), 3, 4, pixels=True)
    with pytest.raises(InputError, match="the network has 2 classes"), Loader(
            path, whole(2, 1, 4, 4), whole(2, 4, 4), 2, classes=2) as loader:
        loader.batch(0, 0)
    with pytest.raises(InputError, match="labels for each pixel, but the network's loss takes one "
                                         "for each image"):
        Loader(path, whole(2, 1, 4, 4), (0, 2), 2)
    synthetic(path, (1, 4, 4), 3, 4)
    with pytest.raises(InputError, match="make other data with: hpcpar data synthetic --pixels"):
        Loader(path, whole(2, 1, 4, 4), whole(2, 4, 4), 2)
    with pytest.raises(InputError, match="at most one per channel"):
        synthetic(path, (1, 4, 4), 3, 4, targets=2, pixels=True)


@pytest.mark.parametrize("kind", ["labels", "targets"])
def test_numpy_files_of_pixels(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (8, 2, 5, 4), dtype=np.uint8)
    y = rng.integers(0, 3, (8, 5, 4)) if kind == "labels" else rng.normal(size=(8, 3, 5, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    path = str(tmp_path / "z.h5")
    from_numpy(path, str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
               ArrayOptions(test_fraction=0.25))
    with h5py.File(path) as f:
        assert f[kind].shape == (6, *y.shape[1:]) and f[f"test_{kind}"].shape == (2, *y.shape[1:])
        pairs = {(a.tobytes(), b.tobytes()) for p in ("", "test_")
                 for a, b in zip(f[f"{p}images"], f[p + kind], strict=True)}
        stored = y if kind == "labels" else y.astype("f4")
        assert pairs == {(a.tobytes(), b.tobytes()) for a, b in zip(x, stored, strict=True)}
    np.save(tmp_path / "y.npy", y[..., None, None])
    with pytest.raises(InputError, match=r"targets\), followed by 2 image axes for pixels"):
        from_numpy(path, str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))


def test_the_command_makes_signals_and_pixels(tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "s.h5")
    options = ("--classes", "3", "--pixels", "--samples", "4")
    assert main(["data", "synthetic", path, "--input", "6x40", *options]) == 0
    assert dataset.info(path)["labels"] == {"shape": [4, 40], "dtype": "uint8"}
    assert main(["data", "info", path]) == 0
    shown = "".join(capsys.readouterr())
    assert "4 images 6x40 uint8, 3 classes of pixels" in shown


@pytest.mark.usefixtures("resident_bytes")
def test_labels_that_do_not_count_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = str(tmp_path / "ignored.h5")
    synthetic(path, (1, 4, 4), 3, 4, pixels=True)
    with h5py.File(path, "r+") as f:
        labels = f["labels"][...].astype(int)
        labels[:, 1, 2] = -1
        del f["labels"]
        f["labels"] = labels
    with pytest.raises(InputError, match=r"leave -1 out of the loss with .* --ignore -1"), \
            Loader(path, whole(4, 1, 4, 4), whole(4, 4, 4), 4, classes=3) as loader:
        loader.batch(0, 0)
