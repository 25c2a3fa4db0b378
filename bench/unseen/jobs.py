"""Commands that the bench runs, and the input of a job of a calibration and cases."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Hosts joined by shaped links.
SCRIPT = ROOT / "tests" / "cluster" / "network.sh"
#: Seconds after which a job is given up.
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Case:
    """A plan to run.

    Attributes
    ----------
    seen : list of str
        Plans of other batches whose compute steps are measured before its own.
    steps : int
        Iterations after every visit of one of these plans.
    """

    plan: str
    seen: list[str]
    steps: int
    record: str


@dataclass(frozen=True)
class Job:
    """The work of a job.

    Attributes
    ----------
    counts : bool
        Note what the hosts send, one rank each: `wire` gets bytes of an iteration, by case and
        visit.
    """

    cases: list[Case]
    data: str
    machine: str
    counts: bool
    wire: str

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Job:
        row = json.loads(path.read_text())
        return cls(**(row | {"cases": [Case(**case) for case in row["cases"]]}))


class Failed(Exception):
    """A job ended badly."""


def output(*words: str, limit_s: float = LIMIT_S) -> str:
    """The output of a command."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, cwd=ROOT,
                              stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"given up after {limit_s:g} s") from None
    if done.returncode:
        raise Failed(f"status {done.returncode}: "
                     f"{(done.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return done.stdout
