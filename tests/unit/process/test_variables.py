"""Environment variables of any content, and closed standard files, never give a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpcpar.comm.world import separate_worlds
from hpcpar.process.launchers import whole_number
from hpcpar.process.signals import StopRequest

#: Texts of which `str.isdigit` says that they are numbers, and `int` that they are not.
NO_NUMBERS = ("²", "1" * 5000)


@pytest.mark.parametrize(("text", "number"), [
    ("7", 7), ("4(x2),3", 4), ("8,4", 8), ("", None), ("-1", None), ("3.5", None), ("many", None),
    *((text, None) for text in NO_NUMBERS)])
def test_a_variables_leading_number_is_read(text: str, number: int | None,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", text)
    monkeypatch.setenv("SECOND", "2")
    assert whole_number("FIRST") == number
    assert whole_number("FIRST", "SECOND") == (2 if number is None else number)
    assert whole_number("NONE") is None


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_slurms_variables_that_are_not_numbers_count_as_absent(
        text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_END_TIME", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"):
        monkeypatch.setenv(name, text)
    assert not StopRequest().due(0.0)
    assert separate_worlds(1, "MPICH") is None


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_command_prints_in_any_environment(text: str) -> None:
    names = ("LINES", "COLUMNS", "SLURM_PROCID", "PMI_RANK")
    done = subprocess.run([sys.executable, "-m", "hpcpar", "networks"], capture_output=True,
                          text=True, check=False, env=os.environ | dict.fromkeys(names, text))
    assert done.returncode == 0 and done.stderr == "" and "lenet5" in done.stdout


@pytest.mark.parametrize(("closed", "status"), [(">&-", 0), ("<&- >&- 2>&-", 0),
                                                ("no-such-network 2>&-", 2)])
def test_closed_standard_files_are_accepted(closed: str, status: int) -> None:
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m hpcpar networks {closed}"],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
