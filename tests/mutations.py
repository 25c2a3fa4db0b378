"""Changes one token of the core at a time, and looks whether a test of the same room fails.

Run: ``python -m tests.mutations``. It works on a copy of the package and ends with status 1 if a
change passes its tests, which have a minute of processor time. ``--only TEXT`` takes the changes
whose line has this text.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("hpcpar", "kernels", "tests", "bench", "pyproject.toml")
#: Processor time in which a test has to fail.
LIMIT_S = 60


class Subject(NamedTuple):
    """A file, tests of the same room, and the changes: a part of a line before and after."""

    file: str
    tests: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]


WALKS = ("cost/test_walk.py", "cost/test_collective_costs.py")
TABLES = ("schedule/test_collective_algorithms.py",)
PLANS = ("schedule/test_memory_plan.py", "schedule/test_packing.py")
SUBJECTS = (
    Subject("cost/network/walk.py", WALKS, (
        ("np.lexsort((turn, ends))", "np.lexsort((ends, turn))"),
        ("axis=-1) - sorted_values", "axis=-1) + sorted_values"),
        ("message_s + crossing.senders.before", "message_s - crossing.senders.before"),
        ("ready[..., receivers.ranks] + wave.receive_s", "ready[..., receivers.ranks]"),
        ("np.maximum(state[0], port)", "np.minimum(state[0], port)"),
        ("received_s) + wave.add_s", "received_s) - wave.add_s"),
        ("alike_s * (left // cycle)", "alike_s * left"),
        ("if not wave.adds[one]:", "if wave.adds[one]:"))),
    Subject("schedule/algorithms/ring.py", TABLES, (
        ("(sent - 1) % p", "(sent + 1) % p"), ("first += p - 1", "first += p"),
        ("(number < segments)", "(number <= segments)"))),
    Subject("schedule/algorithms/doubling.py", TABLES, (
        ("place ^ (1 << r)", "place ^ (2 << r)"), ("at + distance < p", "at + distance <= p"))),
    Subject("schedule/algorithms/halving.py", TABLES, (
        ("min(distance, size - distance)", "max(distance, size - distance)"),
        ("place(start + count - stop)", "place(start + count)"))),
    Subject("schedule/algorithms/leaders.py", TABLES, (
        ("place + distance < inner", "place + distance <= inner"),)),
    Subject("schedule/algorithms/direct.py", TABLES, (("range(1, p)", "range(0, p)"),)),
    Subject("schedule/waves.py", ("schedule/test_waves.py", "schedule/test_sent_bytes.py"), (
        ("times=out[-1].times + times", "times=out[-1].times"),
        ("np.lexsort((turn, sender, receiver))", "np.lexsort((sender, turn, receiver))"))),
    Subject("network/receptive_field.py", ("network/test_receptive_field.py",), (
        ("last + self.span", "last + self.span - 1"),
        ("(stop - 1) * self.stride", "stop * self.stride"))),
    Subject("cost/timeline/timeline.py", ("cost/test_timeline.py",), (
        ("later(clock.network_s, free)", "later(clock.network_s, 0.0)"),
        ("- price.latency_s", "+ price.latency_s"), ("else 0.5", "else 1.0"),
        ("bisect_left(own[stage]", "bisect_right(own[stage]"))),
    Subject("cost/timeline/clock.py", ("cost/test_timeline.py",), (
        ("+ rate * seconds", "+ seconds"),)),
    Subject("schedule/memory_plan/rank_steps.py", PLANS, (
        ("self.start + last + 1", "self.start + last"),)),
    Subject("schedule/memory_plan/liveness.py", PLANS, (
        ("steps.until[i] - 1", "steps.until[i]"),)),
    Subject("schedule/memory_plan/blocks.py", PLANS, (
        ("min(x[0], y[0])", "max(x[0], y[0])"),)),
    Subject("schedule/memory_plan/passes.py", PLANS, (("part % flying", "part // flying"),)),
    Subject("schedule/memory_plan/packing.py", PLANS, (
        ("stop > at and other", "stop > at or other"),)),
)


def copied(folder: Path) -> Path:
    """A copy of the package and its tests."""
    for name in COPIED:
        path = ROOT / name
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, folder / name, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    return folder


def run(folder: Path, tests: tuple[str, ...]) -> str:
    """The first failed test, or how else the tests ended."""
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))

    command = [sys.executable, "-m", "pytest", "-x", "-q", *(f"tests/unit/{t}" for t in tests)]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
                                "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                          check=False, preexec_fn=limited)
    if done.returncode == 1:
        return "caught: " + next(line.partition("::")[2].partition(" - ")[0] for line in
                                 done.stdout.splitlines() if line.startswith("FAILED"))
    late = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    return {0: "passes"}.get(done.returncode, "late" if late else f"status {done.returncode}")


def outcome(folder: Path, subject: Subject, old: str, new: str) -> str:
    """The outcome of the tests after a change, which is then undone."""
    path = folder / "hpcpar" / subject.file
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        return f"occurs {text.count(old)} times"
    path.write_text(text.replace(old, new), encoding="utf-8")
    found = run(folder, subject.tests)
    path.write_text(text, encoding="utf-8")
    return found


def main() -> int:
    """Prints each change and its outcome; returns 1 if a change was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="changes with this text")
    args = parser.parse_args()
    chosen = {f"{subject.file}: {old} -> {new}": (subject, old, new)
              for subject in SUBJECTS for old, new in subject.changes}
    chosen = {line: change for line, change in chosen.items() if args.only in line}
    caught = 0
    with tempfile.TemporaryDirectory(prefix="hpcpar-mutations-") as name:
        folder = copied(Path(name))
        for tests in dict.fromkeys(subject.tests for subject, _, _ in chosen.values()):
            before = run(folder, tests)
            if before != "passes":
                print(f"{' '.join(tests)} without a change: {before}")
                return 1
        for line, change in chosen.items():
            found = outcome(folder, *change)
            caught += found.startswith("caught")
            print(f"{line}: {found}", flush=True)
    print(f"{caught} of {len(chosen)} changes caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
