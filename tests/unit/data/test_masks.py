"""Images with masks: folders of pictures, and of NIfTI volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.image_folder import from_images
from hpcpar.data.mask_folder import from_masks
from hpcpar.data.nifti_files import from_nifti
from hpcpar.errors import InputError

Image = pytest.importorskip("PIL.Image", reason="images need the extra 'images'")
ALL = ArrayOptions(test_fraction=0.0)
RNG = np.random.default_rng(0)


def save(path: Path, pixels: Any, palette: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if palette:
        image = image.convert("L")
        image.putpalette([i * 5 % 256 for i in range(768)])
    image.save(path)


def read(path: Path) -> dict[str, Any]:
    with h5py.File(path) as f:
        return {name: f[name][...] for name in f}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Five images whose brightness is 40 times the label of each pixel."""
    for i in range(5):
        labels = RNG.integers(0, 3, (8, 12)).astype(np.uint8)
        labels[0, 0] = i % 3
        save(tmp_path / "imgs" / f"{i}.png", np.repeat(40 * labels[..., None], 3, axis=2))
        save(tmp_path / "masks" / f"{i}_mask.png", labels, palette=i == 2)
    return tmp_path / "imgs", tmp_path / "masks"


def test_a_mask_labels_the_pixels_of_the_image_of_its_name(folders: Any, tmp_path: Path) -> None:
    from_masks(str(tmp_path / "d.h5"), *map(str, folders), (1, 8, 12), ALL)
    found = read(tmp_path / "d.h5")
    assert found["labels"].shape == (5, 8, 12)
    assert (found["images"][:, 0] == 40 * found["labels"]).all()


def test_image_and_mask_are_cropped_alike(tmp_path: Path) -> None:
    labels = np.repeat(np.repeat(RNG.integers(0, 4, (5, 9)), 4, 0), 4, 1).astype(np.uint8)
    save(tmp_path / "x" / "a.png", 60 * labels)
    save(tmp_path / "y" / "a.png", labels)
    from_masks(str(tmp_path / "d.h5"), str(tmp_path / "x"), str(tmp_path / "y"), (1, 20, 20), ALL)
    found = read(tmp_path / "d.h5")
    assert (found["images"][0, 0] == 60 * found["labels"][0]).all()
    assert (found["labels"][0] == labels[:, 8:28]).all()


def test_parts_and_ignored_labels(folders: Any, tmp_path: Path) -> None:
    for folder in folders:
        (folder / "train").mkdir()
        (folder / "val").mkdir()
        for file in sorted(folder.glob("*.png")):
            file.rename(folder / ("val" if file.name[0] == "4" else "train") / file.name)
    out = tmp_path / "d.h5"
    assert main(["data", "masks", str(out), *map(str, folders), "--input", "3x4x6", "--ignore",
                 "2"]) == 0
    found = read(out)
    assert len(found["images"]) == 4 and len(found["test_labels"]) == 1
    assert set(np.unique(found["labels"])) == {-1, 0, 1}


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda x, y: (y / "3_mask.png").unlink(), r"3.png has no mask '3'"),
    (lambda x, y: (x / "3.png").unlink(), r"3_mask.png is a mask without an image"),
    (lambda x, y: save(y / "3.png", np.zeros((8, 12), np.uint8)), "are masks of one image"),
    (lambda x, y: save(y / "3_mask.png", np.zeros((8, 11), np.uint8)), "11x8 pixels, its image"),
    (lambda x, y: save(y / "3_mask.png", np.zeros((8, 12, 3), np.uint8)), "are colors, RGB")])
def test_a_pair_that_does_not_fit_is_named(spoil: Any, message: str, folders: Any,
                                           tmp_path: Path) -> None:
    spoil(*folders)
    with pytest.raises(InputError, match=message):
        from_masks(str(tmp_path / "d.h5"), *map(str, folders), (3, 8, 12), ALL)


def test_folders_of_images_and_masks_are_not_two_classes(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not of classes; run: hpcpar data masks FILE.h5 .*imgs"):
        from_images(str(tmp_path / "d.h5"), str(tmp_path))


# -- NIfTI -------------------------------------------------------------------------------------
def volume(path: Path, values: Any, turned: bool = False) -> None:
    """A NIfTI file of values [z, y, x] or [z, y, x, channels], perhaps stored right to left."""
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = np.swapaxes(values, 0, 2)
    affine = np.diag([-1.0 if turned else 1.0, 1, 1, 1])
    nibabel.save(nibabel.Nifti1Image(stored[::-1] if turned else stored, affine), path)


def test_volumes_become_channels_z_y_x(tmp_path: Path) -> None:
    """With channels in files of their own, or as a fourth axis; whatever the orientation."""
    values = RNG.integers(-9, 9, (3, 5, 6, 7, 2)).astype(np.int16)
    labels = (values[..., 0] > 0).astype(np.uint8)
    for i in range(3):
        volume(tmp_path / "y" / f"case{i}.nii.gz", labels[i])
        if i:
            volume(tmp_path / "x" / f"case{i}.nii.gz", values[i], turned=i == 2)
        else:
            for c in range(2):
                volume(tmp_path / "x" / f"case{i}_{c:04}.nii", values[i, ..., c])
    from_nifti(str(tmp_path / "d.h5"), str(tmp_path / "x"), str(tmp_path / "y"), (2, 5, 6, 7), ALL)
    found = read(tmp_path / "d.h5")
    assert (found["images"] == np.moveaxis(values, -1, 1)).all()
    assert (found["labels"] == labels).all() and found["images"].dtype == np.int16
    volume(tmp_path / "x" / "case1.nii.gz", values[1] + 0.5)
    with pytest.raises(InputError, match=r"case1.nii.gz holds float32, .* int16; save all in one"):
        from_nifti(str(tmp_path / "d.h5"), str(tmp_path / "x"), str(tmp_path / "y"), (2, 5, 6, 7),
                   ALL)


def test_volumes_are_cropped_at_the_center_or_surrounded(tmp_path: Path) -> None:
    values = RNG.integers(3, 9, (4, 6, 8)).astype(np.int16)
    volume(tmp_path / "x" / "a.nii", values)
    volume(tmp_path / "y" / "a.nii", values)
    out = tmp_path / "d.h5"
    assert main(["data", "nifti", str(out), str(tmp_path / "x"), str(tmp_path / "y"), "--input",
                 "1x6x4x8", "--test-fraction", "0", "--first-label", "0"]) == 0
    found = read(out)
    assert (found["images"][0, 0, 1:5] == values[:, 1:5]).all()
    assert (found["images"][0, 0, [0, 5]] == values.min()).all()
    assert (found["labels"][0, 1:5] == values[:, 1:5]).all()
    assert not found["labels"][0, [0, 5]].any()


def test_a_volume_without_a_mask_or_damaged_is_named(tmp_path: Path) -> None:
    volume(tmp_path / "x" / "a.nii", np.zeros((2, 3, 4), np.int16))
    volume(tmp_path / "y" / "b.nii", np.zeros((2, 3, 4), np.int16))
    words = str(tmp_path / "d.h5"), str(tmp_path / "x"), str(tmp_path / "y"), (1, 2, 3, 4), ALL
    with pytest.raises(InputError, match=r"a.nii has no partner 'a'"):
        from_nifti(*words)
    (tmp_path / "y" / "b.nii").rename(tmp_path / "y" / "a.nii")
    with open(tmp_path / "x" / "a.nii", "r+b") as f:
        f.truncate(360)
    with pytest.raises(InputError, match=r"a.nii cannot be read as NIfTI"):
        from_nifti(*words)
