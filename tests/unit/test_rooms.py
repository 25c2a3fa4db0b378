"""The rooms: who may import whom, and that planning imports neither MPI nor CuPy nor HDF5."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcpar

ROOT = Path(hpcpar.__file__).parent
#: From top to bottom: a room imports only from rooms above it (and from itself).
ROOMS = ("errors", "network", "machine", "plan", "schedule", "cost", "search", "kernels", "comm", "train", "report", "sweep",
         "cli")
#: Rooms that must not know of another one above them: the machine is no business of the split, nor the reverse.
APART = {"plan": {"machine"}, "schedule": {"machine"}, "kernels": {"machine", "schedule", "cost", "search"}}
FILES = sorted(p for room in ROOMS for p in (ROOT / room).glob("**/*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_from_rooms_above(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    assert room in ROOMS
    above = set(ROOMS[: ROOMS.index(room) + 1]) - APART.get(room, set())
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "hpcpar" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in above, f"{path.name} ({room}) imports {name}"
        if parts[0] == "mpi4py":
            assert room == "comm", f"{path.name} imports {name}: only comm talks to MPI"
        if parts[0] in ("cupy", "cupyx", "cupy_backends"):
            assert room == "kernels" and path.name.startswith("cupy_"), f"{path.name} imports {name}: only the CuPy backend may"


PLANNING = """
import sys
from hpcpar.cli.main import main
status = main({argv!r})
heavy = sorted({{"mpi4py", "cupy", "h5py", "matplotlib", "torch"}} & set(sys.modules))
assert status == 0 and not heavy, (status, heavy)
"""


@pytest.mark.parametrize("argv", [
    ["plan", "--network", "lenet5", "--ranks", "4", "--batch", "64", "--json"],
    ["predict", "--network", "alexnet", "--machine", "cori-knl", "--ranks", "8", "--batch", "64", "--strategy", "grid:*"],
], ids=lambda argv: str(argv[0]))
def test_planning_needs_no_mpi_and_no_gpu(argv: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PLANNING.format(argv=argv)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
