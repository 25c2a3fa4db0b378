"""Type checkers know every option of the Python functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcpar
from tests.limits import LIMIT_S

ROOT = Path(hpcpar.__file__).parents[1]
PROGRAM = """
import hpcpar
hpcpar.plan("lenet5", 4, 64, "local", "data", overlap="none", bucket=0)
hpcpar.predict("lenet5", [1, 2], 64, efficiency=0.5, epochs=3)
hpcpar.simulate("plan.json", jitter=0.1, slow={"node1": 2.0})
hpcpar.sweep("weak", "lenet5", "1,2", 0.25, "study", account="m1", device="gpu")
hpcpar.plan("lenet5", 4, 64, overlap=3)  # arg-type
hpcpar.plan("lenet5", 4, 64, overlp="none")  # call-arg
hpcpar.plan("lenet5", 4)  # call-arg
hpcpar.sweep("weak", "lenet5", "1,2", 1, "study", nodes="4")  # arg-type
hpcpar.simulate("plan.json").runs  # attr-defined
"""


def test_mypy_checks_calls(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "pyproject.toml",
                           program],
                          capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    wanted = [(n, line.rpartition("# ")[2]) for n, line in enumerate(PROGRAM.splitlines(), 1)
              if "# " in line]
    assert len(found) == len(wanted), done.stdout + done.stderr
    for line, (number, code) in zip(found, wanted, strict=True):
        assert f":{number}: error: " in line and line.endswith(f"[{code}]")
