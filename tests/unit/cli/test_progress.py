"""Progress on a terminal, beside results in a file; lines without a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import hpcpar
from hpcpar.report.progress import ProgressBar
from tests.limits import LIMIT_S

ROOT = Path(hpcpar.__file__).parents[1]


def synthetic(path: Path, stderr: int) -> str:
    """The results of a command that writes long enough for a bar."""
    words = ("data", "synthetic", path.name, "--input", "3x64x64", "--samples", "1500")
    done = subprocess.run([sys.executable, "-m", "hpcpar", *words], stdout=subprocess.PIPE,
                          stderr=stderr, text=True, timeout=LIMIT_S, check=True, cwd=path.parent,
                          env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)})
    return done.stdout


def test_a_terminal_shows_a_bar_and_a_file_has_the_results_alone(tmp_path: Path) -> None:
    main_end, other_end = pty.openpty()
    out = synthetic(tmp_path / "a.h5", other_end)
    shown = os.read(main_end, 1 << 16).decode()
    os.close(other_end)
    os.close(main_end)
    assert "writing " in shown and "━" in shown and "/1500" in shown
    assert out.splitlines() == [
        "a.h5: 1500 images 3x64x64 uint8, 1000 classes, synthetic, seed 0, 18.6 MB"]


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with ProgressBar() as lines, ProgressBar(rank=1) as other:
        for step in range(90):
            now_s += 1.0
            for each in (lines, other):
                each.show(step, 90, "epoch 1/1")
        lines.say("epoch 1/1", "done")
        other.say("never")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["epoch 1/1  29/90", "epoch 1/1  59/90", "epoch 1/1  89/90",
                                     "epoch 1/1  done"]
