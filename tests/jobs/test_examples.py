"""The examples at the end of each help, which work one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.jobs.conftest import Run
from tests.unit.cli.test_parser import examples

#: Those that need what others make, in this order.
ORDER = ("data digits", "data info", "plan", "run", "verify", "calibrate", "compare", "trace")


def test_the_examples_work(hpcpar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sklearn", "matplotlib"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.zeros((20, 1, 8, 8), np.uint8))
    np.save("labels.npy", np.arange(20) % 4)
    for command in (*ORDER, "data numpy"):
        done = hpcpar(0, *examples()[command].split()[1:])
        assert done.returncode == 0, (command, done.stderr)
