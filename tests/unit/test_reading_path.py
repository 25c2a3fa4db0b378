"""How far a reader has to walk: functions, files, lines and depth of the simplest question.

Whoever wants to understand ``hpcpar plan`` for a named strategy reads at most the functions that
run. A change that lengthens this walk raises a number here, and says why. ``python -m
tests.unit.test_reading_path`` prints the numbers, also of each room.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import hpcpar
from hpcpar.cli.main import main

ROOT = Path(hpcpar.__file__).parent
QUESTION = ("plan", "--network", "alexnet", "--ranks", "4", "--batch", "128", "--strategy", "data",
            "--machine", "local")
MOST_FUNCTIONS = 641
MOST_FILES = 112
MOST_DEPTH = 32
#: Lines of the files that the page on architecture names.
MOST_LINES = 5070


class Walk:
    """The package's functions that run while `sys.setprofile` calls it, and their deepest nesting.

    Comprehensions and lambdas belong to the function around them.
    """

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.depth = 0

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.functions}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._counts(frame.f_code):
            return
        self.functions.add(frame.f_code)
        depth, outer = 0, frame
        while outer is not None:
            depth += self._counts(outer.f_code)
            outer = outer.f_back
        self.depth = max(self.depth, depth)

    def _counts(self, code: CodeType) -> bool:
        return code.co_filename.startswith(f"{ROOT}/") and not code.co_name.startswith("<")


def walk() -> Walk:
    """The walk through the answer; the command's modules are imported before."""
    importlib.import_module("hpcpar.cli.plan")
    found = Walk()
    before = sys.getprofile()
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(found)
        try:
            status = main(QUESTION)
        finally:
            sys.setprofile(before)
    assert status == 0
    return found


def test_the_simplest_question_does_not_take_longer_to_read() -> None:
    found = walk()
    assert len(found.functions) <= MOST_FUNCTIONS
    assert len(found.files) <= MOST_FILES
    assert found.depth <= MOST_DEPTH


def test_the_files_from_network_to_execution_are_few() -> None:
    """The page on architecture names them."""
    page = ROOT.parent / "docs" / "explanation" / "architecture.md"
    section = page.read_text(encoding="utf-8").split("## The reading path")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", section)
    assert len(files) > 20 and len(set(files)) == len(files)
    assert sum(len((ROOT / name).read_text().splitlines()) for name in files) <= MOST_LINES


if __name__ == "__main__":
    answer = walk()
    print(f"{len(answer.functions)} functions in {len(answer.files)} files, {answer.depth} deep")
    rooms = Counter(Path(code.co_filename).relative_to(ROOT).parts[0] for code in answer.functions)
    lines = Counter[str]()
    for name in answer.files:
        lines[Path(name).relative_to(ROOT).parts[0]] += len(Path(name).read_text().splitlines())
    for room, count in rooms.most_common():
        print(f"{room}: {count} functions, {lines[room]} lines")
