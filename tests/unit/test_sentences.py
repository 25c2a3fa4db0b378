"""Messages are plain English: none has the turns of phrase that readers stumble over."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hpcpar

ROOT = Path(hpcpar.__file__).parent
#: Calls whose first argument a user reads.
SAYING = {"InputError", "RunError", "ValueRefused", "error", "remark", "say"}
#: What to write instead stands behind each.
PATTERNS = {
    r"\b(is|are) of\b": "has, belongs to, comes from",
    r"(?<!\bthere) (is|are) no\b(?! longer)": "is not a",
    r"\b(that|those) of\b": "name the thing again",
    r"\btold\b": "given, says",
    r"\bwhat is\b": "name the thing",
    r"\bas many as\b": "up to, the same number of",
}


def text(node: ast.expr) -> str:
    """The fixed words of a message."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    return "{}"


def messages() -> list[tuple[str, str]]:
    found = []
    for path in [*ROOT.rglob("*.py"), *(ROOT / "kernels").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = isinstance(node, ast.Call) and (
                getattr(node.func, "id", "") or getattr(node.func, "attr", ""))
            if isinstance(node, ast.Call) and name in SAYING and node.args:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.append((place, " ".join(text(node.args[0]).split())))
    return found


def test_messages_have_none_of_the_patterns() -> None:
    said = messages()
    assert len(said) > 400
    assert [f"{place}: {words}: write {better}" for place, words in said
            for pattern, better in PATTERNS.items() if re.search(pattern, words)] == []
