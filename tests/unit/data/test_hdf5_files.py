"""HDF5 files as others write them: names, groups, one sample per file, types, compression."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.hdf5_files import from_hdf5
from hpcpar.data.numpy_files import from_numpy
from hpcpar.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 2, 6, 5), dtype=np.uint8)
LABELS = np.arange(9) % 3
ALL = ArrayOptions(test_fraction=0.0)


def written(path: Path, **datasets: Any) -> str:
    """An HDF5 file; two underscores in a name stand for a slash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as f:
        for name, values in datasets.items():
            f[name.replace("__", "/")] = values
    return str(path)


def converted(tmp_path: Path, source: str, *names: str, options: ArrayOptions = ALL,
              **more: Any) -> dict[str, Any]:
    """The datasets that `from_hdf5` writes."""
    out = str(tmp_path / "out.h5")
    from_hdf5(out, source, *names, options=options, **more)
    with h5py.File(out) as f:
        return {name: f[name][...] for name in f}


@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y"), ("scans__data", "scans__y")])
def test_datasets_are_found_by_name_or_named(names: tuple[str, str], tmp_path: Path) -> None:
    source = written(tmp_path / "a.h5", **dict(zip(names, (IMAGES, LABELS), strict=True)))
    if "scans" in names[0]:
        with pytest.raises(InputError, match=r"without clear names.*--images and --labels"):
            converted(tmp_path, source)
        found = converted(tmp_path, source, "scans/data", "scans/y")
    else:
        found = converted(tmp_path, source)
    assert (found["images"] == IMAGES).all() and (found["labels"] == LABELS).all()


def test_groups_separate_the_held_out_part(tmp_path: Path) -> None:
    source = written(tmp_path / "a.h5", train__images=IMAGES[:6], train__labels=LABELS[:6],
                     test__images=IMAGES[6:], test__labels=LABELS[6:])
    found = converted(tmp_path, source, options=ArrayOptions())
    assert (found["test_images"] == IMAGES[6:]).all() and (found["labels"] == LABELS[:6]).all()


@pytest.mark.parametrize("dtype", ["f2", ">f4", ">u2", "u4", "i8", "i1", "?"])
def test_every_type_of_number_keeps_its_values(dtype: str, tmp_path: Path) -> None:
    images = (IMAGES % 100).astype(dtype)
    found = converted(tmp_path, written(tmp_path / "a.h5", images=images, labels=LABELS))
    assert (found["images"] == images).all() and found["images"].dtype.isnative
    assert found["images"].dtype.itemsize <= 4


def test_whole_numbers_beyond_16_bits_are_refused(tmp_path: Path) -> None:
    wide = IMAGES.astype("u4") * 1000
    source = written(tmp_path / "a.h5", images=wide, labels=LABELS)
    with pytest.raises(InputError, match=r"from 0 to 255000.*divide them"):
        converted(tmp_path, source)
    signed = IMAGES.astype("i4") - 200
    found = converted(tmp_path, written(tmp_path / "b.h5", images=signed, labels=LABELS))
    assert found["images"].dtype == np.int16 and (found["images"] == signed).all()


def test_a_file_for_each_sample(tmp_path: Path) -> None:
    """As CosmoFlow has them: the datasets of a file have no axis for samples."""
    volumes = RNG.integers(0, 9, (4, 3, 4, 5, 6)).astype("i4")
    targets = RNG.random((4, 2))
    for i in range(4):
        written(tmp_path / "cosmo" / f"{i}.hdf5", full=volumes[i], unitPar=targets[i])
    (tmp_path / "cosmo" / "notes.txt").touch()
    found = converted(tmp_path, str(tmp_path / "cosmo"), "full", "unitPar", one_per_file=True)
    assert (found["images"] == volumes).all()
    assert found["targets"] == pytest.approx(targets, rel=1e-6)


def test_a_file_holds_several_samples_and_a_label_may_be_one_number(tmp_path: Path) -> None:
    for part, rows in (("train", (0, 4, 6)), ("val", (6, 9))):
        for low, high in pairwise(rows):
            written(tmp_path / "shards" / part / f"{low}.h5", images=IMAGES[low:high],
                    labels=LABELS[low:high])
    found = converted(tmp_path, str(tmp_path / "shards"), options=ArrayOptions())
    assert (found["images"] == IMAGES[:6]).all() and (found["test_labels"] == LABELS[6:]).all()
    for i in range(3):
        written(tmp_path / "single" / f"{i}.h5", images=IMAGES[i], labels=LABELS[i])
    source = str(tmp_path / "single")
    with pytest.raises(InputError, match="a single number; add --one-per-file"):
        converted(tmp_path, source)
    found = converted(tmp_path, source, one_per_file=True)
    assert (found["labels"] == LABELS[:3]).all()


def test_a_file_that_differs_is_named(tmp_path: Path) -> None:
    written(tmp_path / "s" / "a.h5", images=IMAGES, labels=LABELS)
    written(tmp_path / "s" / "b.h5", images=IMAGES[..., 1:], labels=LABELS)
    with pytest.raises(InputError, match=r"b.h5: 'images' holds .*unlike .*a.h5"):
        converted(tmp_path, str(tmp_path / "s"))


def test_blosc_is_read_with_its_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("images", data=IMAGES, chunks=(1, 2, 6, 5), **plugin.Blosc())
        f["labels"] = LABELS
    assert (converted(tmp_path, str(tmp_path / "a.h5"))["images"] == IMAGES).all()
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(InputError, match=r"compressed by blosc.*hpcpar\[hdf5\]"):
        converted(tmp_path, str(tmp_path / "a.h5"))


def test_the_command_converts_and_describes(tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "a.h5", x=np.moveaxis(IMAGES, 1, -1), y=LABELS)
    out = str(tmp_path / "d.h5")
    assert main(["data", "hdf5", out, source]) == 2
    assert "--channels-last" in capsys.readouterr().err
    assert main(["data", "hdf5", out, source, "--channels-last"]) == 0
    assert "6 + 3 held out images 2x6x5 uint8, 3 classes, HDF5 file a.h5: 'x', 'y'" in (
        capsys.readouterr().out)


@pytest.mark.parametrize(("start", "command"), [
    (b"\x89HDF\r\n\x1a\n", "hpcpar data hdf5"), (b"CDF\x01", "hpcpar data xarray")])
def test_other_formats_given_as_numpy_files_name_their_command(start: bytes, command: str,
                                                               tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(start + bytes(100))
    with pytest.raises(InputError, match=command):
        from_numpy(str(tmp_path / "d.h5"), str(tmp_path / "a"), str(tmp_path / "a"))
