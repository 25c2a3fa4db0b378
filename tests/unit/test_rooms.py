"""The rooms: who may import whom, and that planning imports no MPI, CuPy, HDF5 or bfloat16."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcpar
from tests.limits import LIMIT_S

ROOT = Path(hpcpar.__file__).parent
#: From top to bottom: a room imports only from rooms above it (and from itself).
ROOMS = ("errors", "version", "process", "io", "options", "network", "machine", "plan", "schedule",
         "papers", "cost", "simulation", "prediction", "search", "data", "kernels", "comm",
         "runtime", "train", "calibrate", "diagnose", "report", "sweep", "api", "torch", "cli")
#: Rooms that must not know of another one above them: the machine does not concern the split, nor
#: the reverse.
APART = {"plan": {"machine"}, "schedule": {"machine"},
         "kernels": {"machine", "schedule", "cost", "search"}}
#: The plan's file carries the machine that the plan was made for.
PLAN_FILE = ROOT / "plan" / "plan.py"
FILES = sorted(p for room in ROOMS
               for p in (*ROOT.glob(f"{room}.py"), *ROOT.glob(f"{room}/**/*.py")))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_is_a_room() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} < set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_from_rooms_above(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    apart = set() if path == PLAN_FILE else APART.get(room, set())
    above = set(ROOMS[: ROOMS.index(room) + 1]) - apart
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "hpcpar":
            assert parts[1:2] != [] and parts[1] in above, f"{path.name} ({room}) imports {name}"
        if parts[0] == "mpi4py":
            assert room == "comm", f"{path.name} imports {name}: only comm talks to MPI"
        if parts[0] in ("cupy", "cupyx", "cupy_backends", "cudnn"):
            assert room == "kernels" and path.name.startswith(
                "cupy_"), f"{path.name} imports {name}: only the CuPy backend may"


def module(path: Path) -> str:
    """The dotted name of a file; a package has the name of its folder."""
    parts = ("hpcpar", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_files_import_in_a_circle() -> None:
    """Files can be read one after the other: none imports, however far around, a file that imports
    it.
    """
    files = {module(path): path for path in FILES}
    graph = {name: {n if n in files else n.rpartition(".")[0] for n in imports(path)} & set(files)
             - {name}
             for name, path in files.items()}
    outside = {name for name, needs in graph.items() if not needs}
    while outside:
        graph = {name: needs - outside for name, needs in graph.items() if name not in outside}
        imported = {n for needs in graph.values() for n in needs}
        outside = {name for name, needs in graph.items() if not needs or name not in imported}
    assert not graph, f"files import each other in a circle: {sorted(graph)}"


#: Closed forms are oracles; product code takes only Gholami's choice of a grid.
ORACLES = "hpcpar.papers"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_product_code_imports_an_oracle(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] != "papers":
        found = [name for name in imports(path) if name.startswith(ORACLES)]
        assert all(name.startswith(f"{ORACLES}.gholami_choice") for name in found), found


PLANNING = """
import sys
from hpcpar.cli.main import main
status = main({argv!r})
heavy = sorted({{"mpi4py", "cupy", "cudnn", "h5py", "ml_dtypes", "matplotlib", "torch"}}
               & set(sys.modules))
assert status == 0 and not heavy, (status, heavy)
"""


@pytest.mark.parametrize("argv", [
    ["plan", "--network", "lenet5", "--ranks", "4", "--batch", "64", "--json"],
    ["predict", "--network", "alexnet", "--machine", "cori-knl", "--ranks", "8", "--batch", "64",
     "--strategy", "grid:*"],
], ids=lambda argv: str(argv[0]))
def test_planning_needs_no_mpi_and_no_gpu(argv: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PLANNING.format(argv=argv)], capture_output=True,
                          text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
