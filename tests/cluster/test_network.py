"""Runs between hosts that only TCP joins: they work, and what the interfaces count is what the
schedule says.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcpar.train import record_file
from tests.cluster.conftest import environment, script
from tests.limits import LIMIT_S

RANKS = 4
#: TCP, IP and Ethernet headers in packets of 9000 bytes, acknowledgments, and MPI's own headers:
#: 1.2 to 1.6% were found.
OVERHEAD = 0.03
#: Iterations of two runs: their difference has neither MPI's start nor its end in it.
FEW, MANY = 4, 24


def sent() -> np.ndarray:
    """Bytes that every host has sent so far."""
    return np.array([int(script("network.sh", "bytes", host).stdout)
                     for host in range(1, RANKS + 1)])


def run(plan: Path, data: Path, out: Path, steps: int) -> np.ndarray:
    """Run a plan on all hosts; returns the bytes that each has sent."""
    before = sent()
    done = script("network.sh", "run", "-n", RANKS, sys.executable, "-m", "hpcpar", "run", "--plan",
                  plan, "--data", data, "--steps", steps,
                  "--out", out)
    assert done.returncode == 0, done.stderr
    return sent() - before


@pytest.mark.parametrize("strategy", ["data", "grid:2x2"])
def test_bytes_on_the_wire_match_the_schedule(network: None, data: Path, tmp_path: Path,
                                              strategy: str) -> None:
    plan = tmp_path / "plan.json"
    words = ["plan", "--network", "lenet5", "--ranks", str(RANKS), "--batch", "64", "--strategy",
             strategy, "-o", str(plan)]
    subprocess.run([sys.executable, "-m", "hpcpar", *words], check=True, capture_output=True,
                   env=environment(), timeout=LIMIT_S)
    few, many = (run(plan, data, tmp_path / f"{steps}.h5", steps) for steps in (FEW, MANY))
    measured = (many - few) / (MANY - FEW)
    made = record_file.read(str(tmp_path / f"{MANY}.h5"))
    assert sorted(rank.hostname for rank in made.ranks) == [f"hpn{i}" for i in range(1, RANKS + 1)]
    planned = made.sent_bytes.sum(axis=1)
    assert (planned > 400_000).all()  # large messages, so that headers are few
    assert (measured > planned).all() and (measured < (1 + OVERHEAD)
                                           * planned).all(), measured / planned
