"""Every entry of docs/reference/where-is.md names a function, class or constant that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A row of a table: the subject, and `file.py:name` or `file.py:Class.method`.
ROW = re.compile(r"^\| (?P<subject>[^|]+?) +\| `(?P<path>[\w/]+\.py):(?P<name>[\w.]+)` +\|$")
#: The page has at least this many entries.
LEAST = 60


def rows() -> list[tuple[str, str, str]]:
    page = (ROOT / "docs" / "reference" / "where-is.md").read_text(encoding="utf-8")
    found = [ROW.match(line) for line in page.splitlines() if line.startswith("| ")]
    heads = [line for line in page.splitlines() if line.startswith("| ") and not ROW.match(line)]
    assert all("looked for" in line or set(line) <= set("| -") for line in heads), heads
    return [(m["subject"], m["path"], m["name"]) for m in found if m]


def names(path: Path) -> set[str]:
    """Functions, classes and constants of a file, methods as ``Class.method``."""
    out: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out.add(node.name)
        if isinstance(node, ast.ClassDef):
            out |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            out |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out.add(node.target.id)
    return out


def test_every_entry_exists() -> None:
    missing = [f"{subject}: {path}:{name}" for subject, path, name in rows()
               if not (ROOT / path).is_file() or name not in names(ROOT / path)]
    assert not missing


def test_the_page_covers_the_package() -> None:
    found = rows()
    assert len(found) >= LEAST
    assert len({subject for subject, *_ in found}) == len(found)
