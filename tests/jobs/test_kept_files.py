"""Jobs that are killed, stopped or resumed lose no iteration of the record and no file of others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcpar.cli.main import main
from hpcpar.train import checkpoint, record_file
from tests.jobs.conftest import Run, clean_environment, summary
from tests.limits import LIMIT_S

Make = Callable[..., Path]
#: Ends the process by SIGKILL after it has written a file: the record of a step, or its checkpoint.
KILLED = """
import os, signal, sys
from hpcpar.cli.main import main
from hpcpar.train import checkpoint, record_file
module, step = {"record": record_file, "checkpoint": checkpoint}[sys.argv[1]], int(sys.argv[2])
write = module.write
def then_die(path, content, *more):
    write(path, content, *more)
    here = content.done if module is record_file else checkpoint.read_state(path).step
    if here == step:
        os.kill(os.getpid(), signal.SIGKILL)
module.write = then_die
sys.exit(main(sys.argv[3:]))
"""
#: Sends itself a signal where the run has returned, and where the interpreter shuts down.
SIGNALLED = """
import atexit, os, sys
from hpcpar import __main__
from hpcpar.cli import main as commands, run
number, place = int(sys.argv[1]), sys.argv[2]
del sys.argv[1:3]
strike = lambda *_: os.kill(os.getpid(), number)
if place == "summary":
    summary = run._summary
    run._summary = lambda *args: [strike(), strike(), summary(*args)][-1]
else:
    from hpcpar.comm.world import World
    World.__del__ = strike
status = __main__.main()
if place == "exit":
    strike()
sys.exit(status)
"""


def words(plan: Path, digits: Path, folder: Path, steps: int) -> list[str]:
    return [str(word) for word in (
        "run", "--plan", plan, "--data", digits, "--steps", steps, "--checkpoint", folder / "w.h5",
        "--checkpoint-every", "4steps", "--keep", 2, "--out", folder / "run.h5", "--seed", 3)]


def numbers(path: Path) -> list[int]:
    """The iterations in a record."""
    found = record_file.read(str(path))
    assert found.iterations_done is not None and found.missing == 0
    return [int(n) for n in found.iterations_done]


@pytest.mark.parametrize(("what", "step"), [("record", 8), ("checkpoint", 8), ("checkpoint", 12)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_record_has_every_iteration_after_a_kill(
        what: str, step: int, ranks: int, hpcpar: Run, plan: Make, digits: Path, tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    """A kill between the record and its checkpoint, or right after both; the last one included.
    The rest of the training runs under the same plan (on 1 rank) or under another one (on 2).
    """
    command = words(plan(1, "data", precision="fp64"), digits, tmp_path, 12)
    killed = subprocess.run([sys.executable, "-c", KILLED, what, str(step), *command],
                            capture_output=True, timeout=LIMIT_S, env=clean_environment(),
                            check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    saved = checkpoint.read_state(str(tmp_path / "w.h5")).step
    assert saved == (4 if what == "record" else step)
    assert numbers(tmp_path / "run.h5") == [*range(step)]
    rest = hpcpar(ranks, *words(plan(ranks, "data", precision="fp64"), digits, tmp_path, 12),
                  "--resume", tmp_path / "w.h5")
    assert rest.returncode == 0, rest.stderr
    parts = [numbers(path) for path in sorted(tmp_path.glob("run*.h5"))]
    assert sorted(n for part in parts for n in part) == [*range(12)]
    assert len(parts) == 1 + (ranks == 2 and saved < 12)
    assert main(["compare", str(tmp_path / "run.h5")]) == 0
    first = min(numbers(tmp_path / "run.h5"))
    assert f"recorded: {12 - first} of the training's 12 iterations" in capsys.readouterr().out


def test_files_of_others_stay(hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    for step in (1, 3, 30):
        (tmp_path / f"w.step{step}.h5").write_text("mine")
    command = words(plan(1, "data"), digits, tmp_path, 16)
    done = hpcpar(1, *command)
    assert done.returncode == 0, done.stderr
    (tmp_path / "w.step4.h5").write_text("mine")
    again = hpcpar(1, *command, "--overwrite")
    assert again.returncode == 2 and "epoch" not in again.stderr
    assert "w.step4.h5 exists, and this training run did not write it" in again.stderr
    assert {p.name: p.read_text() for p in tmp_path.glob("w.step*.h5")
            if p.stat().st_size < 9} == {f"w.step{n}.h5": "mine" for n in (1, 3, 4, 30)}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("place", ["summary", "exit", "shutdown"])
def test_a_signal_after_the_work_is_saved_changes_nothing(
        name: str, place: str, plan: Make, digits: Path, tmp_path: Path) -> None:
    command = words(plan(1, "data"), digits, tmp_path, 4)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(getattr(signal, name))), place, *command],
        capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert "Trained to step 4" in done.stdout and numbers(tmp_path / "run.h5") == [*range(4)]


def test_a_record_of_another_training_is_not_continued(hpcpar: Run, plan: Make, digits: Path,
                                                       tmp_path: Path) -> None:
    """Two trainings with one plan share a folder."""
    here = plan(1, "data")
    for name, rate in (("a", 0.01), ("b", 0.02)):
        (tmp_path / name).mkdir()
        made = hpcpar(1, *words(here, digits, tmp_path / name, 8), "--rate", rate)
        assert made.returncode == 0, made.stderr
    os.rename(tmp_path / "b/w.h5", tmp_path / "a/b.h5")
    losses = record_file.read(str(tmp_path / "a/run.h5")).loss
    resumed = hpcpar(1, "run", "--plan", here, "--data", digits, "--steps", 12, "--seed", 3,
                     "--rate", 0.02, "--resume", tmp_path / "a/b.h5", "--out",
                     tmp_path / "a/run.h5", "--json")
    assert len(summary(resumed)["losses"]) == 4
    assert numbers(tmp_path / "a/run.h5") == [*range(8, 12)]
    aside = record_file.read(str(tmp_path / "a/run.1.h5"))
    assert aside.loss.tolist() == losses.tolist()
