"""HDF5 files of others: links, storage elsewhere, damage, absurd sizes, full disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.io import hdf5

CALL = ("thing", "make it again")


def fault(path: Path, **options: bool) -> str:
    """The message of `check` about a file; empty where the file passes."""
    try:
        hdf5.check([str(path)], *CALL, **options)
    except InputError as err:
        assert str(err).startswith(f"thing {path} ") and str(err).endswith("; make it again")
        assert "\n" not in str(err)
        return str(err)
    return ""


def test_circular_and_dangling_links_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f["a/b/numbers"] = np.arange(3)
        f["a/b/up"] = f["a"]
        f["a/soft"] = h5py.SoftLink("/a/soft")
        f["nowhere"] = h5py.SoftLink("/not/there")
    assert fault(path) == ""
    with h5py.File(path) as f:
        assert hdf5.find(f, "a/soft") is None and hdf5.find(f, "nowhere") is None
        assert hdf5.find(f, "a/b") is None and hdf5.find(f, "a/b", h5py.Group) is not None
        assert hdf5.array(f, "a/b/numbers", "i", *CALL).tolist() == [0, 1, 2]


def test_external_data_are_refused_unless_allowed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as f:
        f["x"] = np.arange(4)
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(8))
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (4,))
    for name in ("link", "external", "virtual"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            if name == "link":
                f["deep/x"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
            elif name == "external":
                f.create_dataset("x", (8,), "u1", external=[(str(raw), 0, 8)])
            else:
                f.create_virtual_dataset("x", layout)
        path = tmp_path / f"{name}.h5"
        assert "has data in other files" in fault(path) and "--allow-external" in fault(path)
        assert fault(path, allow_external=True) == ""


def test_a_file_that_crashes_the_library_is_damaged(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    path.touch()
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert "the HDF5 library crashes on it" in fault(path)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert "the HDF5 library crashes on it" in fault(path)


def test_a_signal_to_the_check_asks_this_process_to_stop(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file is not damaged."""
    h5py.File(tmp_path / "a.h5", "w").close()
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n[ -e {tmp_path}/asked ] && exec {sys.executable} "$@"\n'
                       f"touch {tmp_path}/asked\nkill -USR1 $$\n")
    program.chmod(0o755)
    noted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: noted.append(number))
    try:
        monkeypatch.setattr(hdf5.sys, "executable", str(program))
        assert fault(tmp_path / "a.h5") == ""
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert noted == [signal.SIGUSR1]


def test_a_file_with_endless_texts_is_damaged(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f["texts"] = ["one", "two"]
    whole = bytearray(path.read_bytes())
    size_of_first = whole.index(b"GCOL") + 24  # 0 there, and the library reads it again and again
    whole[size_of_first:size_of_first + 8] = bytes(8)
    path.write_bytes(whole)
    monkeypatch.setattr(hdf5, "CHECK_S", 2)
    assert "takes forever" in fault(path)


def test_repeated_references_to_one_text_do_not_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f["texts"] = np.array(["x" * (1 << 25), *["y"] * 255], h5py.string_dtype())
        place = f["texts"].id.get_offset()
    whole = bytearray(path.read_bytes())
    whole[place:place + 16 * 256] = whole[place:place + 16] * 256  # 8.6 GB
    path.write_bytes(whole)
    assert "allocation failed" in fault(path)


def test_damage_is_found_before_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as f:
        for i in range(30):
            f[f"group{i}/x"] = i
    whole = path.read_bytes()
    found = 0
    for place in range(100, len(whole), len(whole) // 12):
        flipped = bytearray(whole)
        flipped[place:place + 8] = os.urandom(8)
        path.write_bytes(flipped)
        found += "is damaged" in fault(path)
    assert found >= 3


def test_arrays_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_group("group")
        f["text"] = "words"
        f.create_dataset("zeros", (10**12,), "f8", chunks=(1000,))
        f.create_dataset("few", (10**12,), "f8", chunks=(1000,))[:10] = 1
        for name, message in (("none", "has no data set 'none'"), ("group", "no data set 'group'"),
                              ("text", "has values of type object in 'text'"),
                              ("zeros", "has nothing in 'zeros'"), ("few", "'/few' is too large")):
            with pytest.raises(InputError, match=message):
                hdf5.array(f, name, "f", *CALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys, numpy as np
        from hpcpar.errors import InputError
        from hpcpar.io.hdf5 import replacing
        try:
            with replacing(sys.argv[1], "data file") as f:
                images = f.create_dataset("images", (64, 1 << 17), "u1", chunks=(1, 1 << 17))
                labels = f.create_dataset("labels", (64,), "i8")
                for i in range(64):
                    images[i] = np.random.default_rng(i).integers(0, 255, 1 << 17, "u1")
                    labels[i] = i
        except InputError as err:
            print(err)
    """)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "none", str(small)],
                             capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        path = small / "data.h5"
        path.write_bytes(b"old")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0 and done.stderr == ""
        assert done.stdout.startswith(f"cannot write data file {path}: No space left on device")
        assert [p.name for p in small.iterdir()] == ["data.h5"] and path.read_bytes() == b"old"
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_attributes_of_any_bytes_become_text(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.attrs["by"] = b"\xff\xfe ok"
        f.attrs["count"] = np.arange(2)
        found = hdf5.attributes(f, "x.h5", "use another one")
    assert found["count"] == [0, 1]
    assert found["by"].encode().endswith(b" ok")
