"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcpar.errors import InputError
from hpcpar.files import atomic_path, write_text


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(str(path), "thing") as temporary:
        Path(temporary).write_bytes(b"new")
        assert path.read_text() == "old" and Path(temporary).parent == tmp_path
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(str(path), "old", "thing")
    with pytest.raises(error), atomic_path(str(path), "thing") as temporary:
        Path(temporary).write_text("half")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_permissions_are_the_users(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(str(tmp_path / "a.txt"), "text", "thing")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write thing .*/no/a\.txt: No such file or dir"):
        write_text(str(tmp_path / "no" / "a.txt"), "text", "thing")
