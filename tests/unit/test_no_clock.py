"""No test's verdict comes from the clock: a slow or busy machine makes tests slow, not red."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).resolve().parents[1]
#: Functions of `time` that read a clock or wait, and settings of Hypothesis that only the profile
#: may have.
CLOCKS = {"monotonic", "perf_counter", "process_time", "sleep", "time"}
PROFILE = {"deadline", "derandomize", "database", "suppress_health_check"}
#: Why a file may read the clock or wait for a time.
REASONS = {
    "limits.py": "waits between two looks at a state",
    "speed.py": "measures the machine",
    "run_docs.py": "prints how long a page took",
    "record_predictions.py": "prints how long a command took",
    "fuzz/__main__.py": "prints how long the cases took",
    "fuzz/judge.py": "ends cases that are stuck",
    "pretended/cupy/cuda/streams.py": "notes the times of events, as a GPU does",
    "mpi/conftest.py": "ends tests that are stuck",
    "mpi/sharing.py": "waits between two looks at a message",
    "mpi/test_clock.py": "tests clocks against each other, within their own bounds",
    "mpi/test_slow_stage.py": "delays a rank, after which results are the same",
    "mpi/test_waiting.py": "sleeps as the function in whose place it stands",
    "unit/train/test_saving.py": "stops the clock",
    "unit/cli/test_elastic.py": "sleeps as the function in whose place it stands",
    "jobs/test_interrupted.py": "sends a signal at any moment",
    "cluster/test_slurm.py": "sends a signal at any moment",
}


def files() -> list[Path]:
    return sorted(TESTS.rglob("*.py"))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls in a file, with the last part of the function's name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield name.rpartition(".")[2], node


def clocks(path: Path) -> list[str]:
    """Readings of a clock and waits in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [f"{path}:{node.lineno}" for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time"
                and node.attr in CLOCKS)
            or (isinstance(node, ast.ImportFrom) and node.module == "time")]


def test_only_files_with_a_reason_read_the_clock() -> None:
    found = {str(path.relative_to(TESTS)): clocks(path) for path in files()}
    assert {name for name, places in found.items() if places} == REASONS.keys(), found


def test_limits_are_those_of_one_file() -> None:
    """A number of seconds beside a call would be a verdict by the clock."""
    own = [f"{path}:{call.lineno}" for path in files() for name, call in calls(path)
           if any(keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant)
                  for keyword in call.keywords)
           or (name in ("wait", "timeout") and call.args
               and isinstance(call.args[0], ast.Constant))]
    assert not own


@settings(max_examples=1)
@given(st.none())
def test_all_tests_have_the_profile(nothing: None) -> None:
    assert settings.default.deadline is None and settings.default.database is None
    assert settings.default.derandomize
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    for path in files():
        for name, call in calls(path):
            assert name not in ("register_profile", "load_profile") or path == TESTS / "conftest.py"
            if name == "settings":
                own = {keyword.arg for keyword in call.keywords} & PROFILE
                assert not own, f"{path}:{call.lineno}: {own} come from tests/conftest.py"
