"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.errors import InputError
from hpcpar.io import files
from hpcpar.io.files import atomic_path, lock, write_text


def test_replacing_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(str(path), "thing") as temporary:
        Path(temporary).write_bytes(b"new")
        assert path.read_text() == "old" and Path(temporary).parent == tmp_path
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


def test_content_is_synced_before_the_rename_and_the_folder_after_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the system leaves the old file or the new one."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        fsync(number)

    def replaced(source: str, target: str) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_text(str(tmp_path / "a.txt"), "new", "thing")
    assert done == ["file", "rename", "folder"]


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


def test_a_replaced_files_permissions_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o600)
    write_text(str(path), "new", "thing")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    link.symlink_to(target)
    write_text(str(link), "first", "thing")  # the target does not exist yet
    write_text(str(link), "second", "thing")
    assert link.is_symlink() and target.read_text() == "second" and not target.is_symlink()
    assert os.listdir(tmp_path / "far") == ["target"] and len(os.listdir(tmp_path)) == 2


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Opening it waited for ever, as for a sweep in a folder whose study.json is a pipe."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"cannot write plan .*pipe: it is a pipe that nobody"):
        files.write_text(str(tmp_path / "pipe"), "{}", "plan")


def test_pipes_and_devices_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(str(pipe), "through", "thing")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    write_text(str(null), "gone", "thing")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_full_device_is_one_line() -> None:
    with pytest.raises(InputError, match=r"cannot write thing /dev/full: No space left on device"):
        write_text("/dev/full", "text", "thing")


def killed(code: str) -> int:
    """The number of a process that ran this code and was then killed."""
    run = f"import os, signal\n{code}\nos.kill(os.getpid(), signal.SIGKILL)"
    with subprocess.Popen([sys.executable, "-c", run]) as process:
        assert process.wait() == -9
    return process.pid


def test_the_next_writer_removes_a_killed_writers_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.txt")
    killed(f"from hpcpar.io.files import atomic_path\nwith atomic_path({path!r}, 'thing') as t:\n"
           " open(t, 'w').write('half')\n os.kill(os.getpid(), signal.SIGKILL)")
    assert [name.startswith(".a.txt.hpcpar-tmp-") for name in os.listdir(tmp_path)] == [True]
    other = tmp_path / f".a.txt.hpcpar-tmp-elsewhere-1-{16 * '0'}"  # may be alive
    other.touch()
    write_text(path, "whole", "thing")
    assert sorted(os.listdir(tmp_path)) == [other.name, "a.txt"]


def test_a_lock_keeps_others_out_and_dies_with_its_owner(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    with lock(path, "checkpoint"):
        with pytest.raises(InputError, match=rf"is being written by another job \(process "
                           rf"{os.getpid()} on .*\); wait"), lock(path, "checkpoint"):
            pass
        with lock(str(tmp_path / "other.h5"), "checkpoint"):
            pass
    assert os.listdir(tmp_path) == []
    killed(f"from hpcpar.io.files import lock\n"
           f"held = lock({path!r}, 'checkpoint')\nheld.__enter__()")
    assert os.listdir(tmp_path) == [".c.h5.hpcpar-lock"]
    with lock(path, "checkpoint"), lock(os.devnull, "record"), lock(os.devnull, "record"):
        pass
    assert os.listdir(tmp_path) == []


def test_links_at_private_names_are_refused(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Links at a lock, or at a temporary file whose name somebody has foreseen."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    trap = tmp_path / ".c.h5.hpcpar-lock"
    trap.symlink_to(victim)
    with pytest.raises(InputError, match="hpcpar-lock is a symbolic link, and hpcpar does not"):
        lock(str(tmp_path / "c.h5"), "checkpoint").__enter__()
    monkeypatch.setattr(files, "require_own", lambda *_: None)  # somebody is faster
    with pytest.raises(InputError, match="Too many levels of symbolic links"):
        lock(str(tmp_path / "c.h5"), "checkpoint").__enter__()
    trap.unlink()
    with atomic_path(str(tmp_path / "a.txt"), "thing") as first:
        pass
    with atomic_path(str(tmp_path / "a.txt"), "thing") as second:
        assert first != second
    monkeypatch.setattr(files, "temporary_of", lambda _: str(tmp_path / "foreseen"))
    (tmp_path / "foreseen").symlink_to(victim)
    with pytest.raises(InputError, match="File exists"):
        write_text(str(tmp_path / "a.txt"), "text", "thing")
    assert victim.read_text() == "precious"


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write thing .*/no/a\.txt: No such file or dir"):
        write_text(str(tmp_path / "no" / "a.txt"), "text", "thing")
