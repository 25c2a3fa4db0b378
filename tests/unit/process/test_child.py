"""Processes that hpcpar starts load nothing from the folder in which they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import hpcpar
from hpcpar.process import child

ROOT = Path(hpcpar.__file__).parent
#: Modules that every process loads early: of Python, and of others.
PLANTED = ("json", "numpy", "queue", "runpy", "signal", "msgspec", "h5py", "typing")


@pytest.mark.parametrize("words", [("hpcpar", "machines"), ("hpcpar.io.hdf5", "20", "a.h5")])
def test_files_of_the_current_folder_are_not_imported(tmp_path: Path,
                                                      words: tuple[str, ...]) -> None:
    h5py.File(tmp_path / "a.h5", "w").close()
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('planted {name}')\n")
    module, *arguments = words
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([*child.command(module), *arguments], cwd=tmp_path, env=env, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0 and "planted" not in done.stdout + done.stderr, done.stderr


def test_the_users_python_path_stays(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("print('theirs')\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(child.command("theirs"), env=env, check=False, capture_output=True,
                          text=True)
    assert done.stdout == "theirs\n", done.stderr


def test_python_is_started_in_one_place() -> None:
    """Python is named in one other place: MPI's launcher lies beside it."""
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py")
             if "sys.executable" in p.read_text(encoding="utf-8")}
    assert found == {"process/child.py", "process/launchers.py"}
    assert child.command()[0] == sys.executable
