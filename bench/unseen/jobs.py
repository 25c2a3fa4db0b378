"""Commands that the bench runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Hosts joined by shaped links.
SCRIPT = ROOT / "tests" / "cluster" / "network.sh"
#: Seconds after which a job is given up.
LIMIT_S = 1800.0


class Failed(Exception):
    """A job ended badly."""


def output(*words: str, limit_s: float = LIMIT_S) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"given up after {limit_s:g} s") from None
    if done.returncode:
        raise Failed(f"status {done.returncode}: {(done.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return done.stdout
