"""Class names are unique in the package, so that a name leads to one definition."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import hpcpar

ROOT = Path(hpcpar.__file__).parent


def test_class_names_are_unique() -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    # In a checkout ``hpcpar/kernels`` is a link, which rglob may not follow.
    for path in sorted({*ROOT.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")}):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    repeated = {name: lines for name, lines in definitions.items() if len(lines) > 1}
    assert not repeated, f"class names with several definitions: {repeated}"
