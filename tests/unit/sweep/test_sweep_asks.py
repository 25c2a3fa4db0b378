"""``hpcpar sweep`` lists the jobs that it would submit, and asks on a terminal. The commands of
Slurm are stand-ins.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.sweep.folder import read_status
from tests.jobs.conftest import clean_environment
from tests.limits import LIMIT_S

LIST = ["hpcpar-p1: 1 rank on 1 node, at most 30 min, 0.5 node-hours",
        "hpcpar-p4: 4 ranks on 2 nodes, at most 30 min, 1 node-hours"]
QUESTION = "Submit 2 jobs, at most 1.5 node-hours? [y/N] "


@pytest.fixture
def command(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """A sweep of two jobs, and its environment: sbatch notes its scripts in ``submitted``."""
    for name, text in (("sbatch", f"echo $2 >>{tmp_path}/submitted; echo 7"),
                       ("scontrol", "echo JobState=PENDING")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    words = ["sweep", "strong", "--network", "lenet5", "--ranks", "1,4", "--batch", "16",
             "--machine", "local", "--out", str(tmp_path / "out"), "--launcher", "slurm",
             "--no-wait", "--time", "30", "--ranks-per-node", "2"]
    env = clean_environment()
    return [sys.executable, "-m", "hpcpar", *words], env | {"PATH": f"{tmp_path}:{env['PATH']}"}


def submitted(folder: Path) -> int:
    """The number of submitted jobs."""
    path = folder / "submitted"
    return len(path.read_text().splitlines()) if path.exists() else 0


def on_a_terminal(words: list[str], env: dict[str, str], answer: bytes) -> tuple[int, str]:
    """The exit status of a command that gets `answer` on a terminal, and what it shows there."""
    ours, its = pty.openpty()
    job = subprocess.Popen(words, stdin=its, stdout=subprocess.DEVNULL, stderr=its,
                           env=env | {"COLUMNS": "120"}, start_new_session=True)
    os.close(its)
    os.write(ours, answer)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # it has ended
            break
    os.close(ours)
    return job.wait(LIMIT_S), shown.decode()


@pytest.mark.parametrize("answer", ["y", "", "no", "\x04"])
def test_on_a_terminal_only_a_yes_submits(command: tuple[list[str], dict[str, str]], answer: str,
                                          tmp_path: Path) -> None:
    status, shown = on_a_terminal(*command, f"{answer}\n".encode())
    assert all(line in shown for line in [*LIST, QUESTION]), shown
    if answer == "y":
        assert status == 0 and submitted(tmp_path) == 2 and "submitted jobs 7, 7" in shown
    else:
        assert status == 1 and submitted(tmp_path) == 0
        assert shown.rstrip().endswith("hpcpar: no job was submitted; the same command asks again")
        states = [read_status(str(path)) for path in (tmp_path / "out/cases").iterdir()]
        assert {state.state for state in states if state} <= {"planned", "same"}


def test_yes_does_not_ask(command: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    words, env = command
    status, shown = on_a_terminal([*words, "--yes"], env, b"")
    assert status == 0 and submitted(tmp_path) == 2
    assert all(line in shown for line in LIST) and "Submit" not in shown


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_scripts_are_not_asked(command: tuple[list[str], dict[str, str]], more: list[str],
                               tmp_path: Path) -> None:
    words, env = command
    done = subprocess.run([*words, *more], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)
    dry = more == ["--dry-run"]
    assert done.returncode == 0 and submitted(tmp_path) == 2 * (not dry), done.stderr
    assert all((line in done.stderr.splitlines()) != dry for line in LIST), done.stderr
    assert "Submit" not in done.stderr
