"""Data files that have no room are refused before they are begun; odd inputs end in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcpar.data.image_folder import from_images
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.room import require_room
from hpcpar.errors import InputError


def test_images_that_fit_pass(tmp_path: Path) -> None:
    require_room(str(tmp_path / "x.h5"), 100, (3, 32, 32), 1, 100)
    require_room(str(tmp_path / "missing" / "x.h5"), 100, (3, 32, 32), 1)


def test_data_larger_than_memory_or_disk_are_refused(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.h5")
    with pytest.raises(InputError, match="images 3x99999x99999 take 29,999,400,003 bytes each"):
        require_room(path, 1, (3, 99999, 99999), 1)
    with pytest.raises(InputError, match="bytes of memory, "):
        require_room(path, 1, (1, 8, 8), 1, 1 << 60)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=639))
    require_room(path, 9, (1, 8, 8), 1)
    with pytest.raises(InputError, match=r"10 images 1x8x8 need 640 bytes of space in .*, but 639"):
        require_room(path, 10, (1, 8, 8), 1)


@pytest.mark.parametrize("head", [b"{'descr': (", b"{'descr': '|u1', 'shape': (2, (", b"\xff", b""])
def test_numpy_files_with_a_damaged_header_are_refused(tmp_path: Path, head: bytes) -> None:
    images, labels = str(tmp_path / "x.npy"), str(tmp_path / "y.npy")
    np.save(images, np.zeros((2, 1, 4, 4), "u1"))
    np.save(labels, np.zeros(2, int))
    content = Path(labels).read_bytes()
    Path(labels).write_bytes(content[:10] + head.ljust(118) + content[128:])
    with pytest.raises(InputError, match=r"y.npy is not a complete NumPy file of numbers") as err:
        from_numpy(str(tmp_path / "d.h5"), images, labels)
    assert "\n" not in str(err.value)


def test_folders_that_hold_themselves_are_read_once(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="images need the extra 'images'")
    for name in "abc":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        image.new("RGB", (4, 4)).save(tmp_path / "pictures" / name / "1.png")
        for link in "xyz":
            os.symlink("..", tmp_path / "pictures" / name / link)
    assert from_images(str(tmp_path / "d.h5"), str(tmp_path / "pictures"), (3, 4, 4), 0.0) == []
