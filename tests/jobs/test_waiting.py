"""Ranks that wait long say where, and end where they wait for each other for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import clean_environment
from tests.limits import LIMIT_S

#: A loop without any comparison of losses; rank 1 does something else before iteration 5.
LOOP = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from hpcpar.comm.world import world
from hpcpar.torch import parallelize
module = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 6))
model = parallelize(module, (2, 8, 8), 6, "filter")
for number in range(1, 7):
    odd = world().rank == 1 and number == 5
    if odd:
        {before}
    loss = model(torch.ones(6, 2, 8, 8)).square().mean()
    if odd:
        {after}
    loss.backward()
"""


def job(mpiexec: str, before: str, after: str, *words: object) -> subprocess.Popen[str]:
    command = [mpiexec, "-n", "3", sys.executable, "-c", LOOP.format(before=before, after=after),
               *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=clean_environment(HPCPAR_STALL_S="30"))


@pytest.mark.parametrize(("before", "after", "place"), [
    ("pass", "continue", "rank 1 is at the forward pass of iteration 6, layer"),
    ("break", "pass", "rank 1 is at the end of the program, after the backward pass of "
                      "iteration 4, where it waits for all ranks"),
    ("raise ValueError('row 17')", "pass", "rank 1 is at the end of the program, after the "
                                           "backward pass of iteration 4, where it waits"),
    ("model(torch.ones(6, 2, 8, 8))", "pass",
     "rank 1 is at the forward pass of iteration 6, layer"),
])
def test_ranks_that_diverge_end_with_their_places(mpiexec: str, before: str, after: str,
                                                  place: str) -> None:
    """Long before the limit of a wait, which would name one rank's place only."""
    with job(mpiexec, before, after) as started:
        text, _ = started.communicate(timeout=LIMIT_S)
    assert started.returncode != 0
    (line,) = [line for line in text.splitlines() if "all ranks wait for each other" in line]
    assert place in line and "make the same calls on every rank; ending the job" in line
    assert "ranks 0, 2 are at the " in line and " pass of iteration 5, layer '" in line
    assert ("row 17" in text) == ("row 17" in before)


def test_a_slow_rank_is_waited_for(mpiexec: str, tmp_path: Path) -> None:
    """The others say that they wait; it goes on only after that."""
    ready = tmp_path / "ready"
    wait = "while not Path(sys.argv[1]).exists(): time.sleep(0.1)"
    with job(mpiexec, wait, "pass", ready) as started:
        assert started.stdout is not None
        line = next((line for line in started.stdout
                     if "no progress for" in line and "iteration 5" in line), "")
        ready.touch()
        text, _ = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 0 and "iteration 5" not in text, text
    assert "ranks 0, 2 are at the forward pass of iteration 5, layer '" in line
    assert ", for rank" in line and line.endswith("; rank 1 is busy, or outside hpcpar\n")
