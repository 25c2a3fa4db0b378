"""A layer's class holds all knowledge of it: few places elsewhere ask which class it is."""

from __future__ import annotations

import ast
from pathlib import Path

import hpcpar
from hpcpar.network.layers import Layer

ROOT = Path(hpcpar.__file__).parent
#: Places outside the layers and their operators that may ask: the papers' formulas for
#: convolutions, and residual branches.
MOST = 7


def class_names(base: type[Layer]) -> set[str]:
    return {base.__name__}.union(*map(class_names, base.__subclasses__()))


def questions(path: Path, names: set[str]) -> list[str]:
    """Calls ``isinstance(..., a layer class)`` in a file."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"]
    return [f"{path.relative_to(ROOT)}:{call.lineno}" for call in calls
            if names & {n.id for n in ast.walk(call.args[1]) if isinstance(n, ast.Name)}]


def test_few_places_check_a_layers_class() -> None:
    names = class_names(Layer)
    assert {"Conv2d", "ReLU", "Loss", "MaxPool"} <= names
    files = [path for path in ROOT.glob("**/*.py")
             if path.relative_to(ROOT).parts[0] != "network" and "ops" not in path.parts]
    found = [place for path in files for place in questions(path, names)]
    assert len(found) <= MOST, found
