"""2,000 mutated files and command lines: no traceback, no hang, no nonsense."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import pytest

from hpcpar.process.child import command
from tests.fuzz import judge
from tests.fuzz.runner import base_in, run_cases
from tests.limits import DRAWN, PARTS

CASES, SEED = 2000, 26


def drawn() -> range:
    """The share of the cases that this run draws; kinds of cases take turns within it."""
    if DRAWN is None:
        return range(CASES)
    part = DRAWN % PARTS
    return range(CASES * part // PARTS, CASES * (part + 1) // PARTS)


def test_no_mutation_gives_a_traceback_a_hang_or_nonsense(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCPAR_CONFIG", "")  # put back at the end
    failures = run_cases(base_in(tmp_path), SEED, drawn())
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize(("code", "fault"), [
    ("raise ValueError('x')", "ValueError escapes: 'x'"),
    ("raise MemoryError", "MemoryError escapes"),
    ("return 3", "status 3 with 0 lines of error"),
    ("return 2", "status 2 with 0 lines of error"),
    ("print('hpcpar: a', file=sys.stderr)", "status 0 with 1 lines"),
    ("print('{\"x\": NaN}')", "NaN in JSON"),
    ("print('{\"iteration_s\": -1.0}')", "iteration_s is -1.0"),
    ("print('{\"a\": [1e999]}')", "is inf"),
    ("print('')", "is not JSON"),
    ("signal.pause()", "takes more than 1 s"),
])
def test_the_judge_finds_faults(code: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, object] = {}
    exec(f"import signal, sys\ndef main(argv):\n    {code}\n    return 0", made)
    monkeypatch.setattr(judge, "main", made["main"])
    if "pause" in code:
        monkeypatch.setattr(judge, "LIMIT_S", 1)
    assert fault in judge.command(["--json"])


def test_the_judge_finds_numbers_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, found in (("time  nan s", True), ("  inf B/s", True), ("nano.toml: info", False),
                        ("inf: 4 images, nan s", True), ("inf: 4 images", False),
                        ("module load nan", False), ("#SBATCH --mem=-inf", False)):
        monkeypatch.setattr(judge, "main", lambda argv, line=line: print(line) or 0)
        assert bool(judge.command([])) == found


def test_the_check_in_a_fork_accepts_a_sound_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as f:
        f["numbers"] = [1.0, 2.0]
    done = judge.ForkedCheck.run([*command("hpcpar.io.hdf5"), "5", path])
    assert done.returncode == 0 and json.loads(done.stdout) is None


def test_a_crash_and_a_hang_of_a_library_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.in_child(lambda: str(os.kill(os.getpid(), 9))) == "crashes the process: status -9"
    monkeypatch.setattr(judge, "LIMIT_S", -1)
    assert "hangs" in judge.in_child(lambda: os.read(os.pipe()[0], 1).decode())
