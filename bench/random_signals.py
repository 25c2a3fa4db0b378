"""Signals at random moments of a job, from its start to its end, and the work that is lost.

Run: ``python bench/random_signals.py`` (300 signals; ``--count``, ``--workers``, ``--launcher
srun`` within or outside a Slurm allocation). A tiny training with a checkpoint every 4 iterations
gets one signal, then is resumed until it is done. It exits with 1 unless every iteration is in the
records exactly once, the weights equal an undisturbed run's bit for bit, files of others are
untouched, and a job that was done ended with status 0 (but for SIGKILL).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import h5py  # noqa: E402

from bench.fault_jobs import environment, hpcpar, kill, step_of, torn  # noqa: E402
from hpcpar.process.signals import STATUS  # noqa: E402
from hpcpar.report.tables import show  # noqa: E402

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL)
EVERY, STEPS = 4, 24
#: Files of others: names that the run might take for its own, and that it does not need.
FOREIGN = ("w.step0.h5", "w.step30.h5", "w.step999.h5", "run.1.h5", "w.p1.plan.json")
#: Signals on which a launcher itself ends the job at once.
DEADLY = {"mpiexec": (signal.SIGHUP,), "srun": (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
#: A job that takes longer (s) hangs.
LIMIT_S = 600.0
COLUMNS = ("signal", "times", "done before", "asked to stop (75)", "killed", "holes", "repeated",
           "other weights", "files of others", "wrong status", "left behind")


@dataclass
class Fate:
    """The end of a job, and the faults of its training."""

    signal: str
    status: int
    done: bool
    faults: list[str] = field(default_factory=list)


@dataclass
class Case:
    """A training run in a folder, and its random numbers."""

    folder: Path
    words: list[str]
    launch: list[str]
    elastic: bool
    random: random.Random

    @property
    def checkpoint(self) -> Path:
        return self.folder / "w.h5"

    def start(self) -> subprocess.Popen[bytes]:
        """A job that goes on from the checkpoint, if there is one."""
        resume = ["--resume", str(self.checkpoint)] if self.checkpoint.exists() else []
        command = [*([] if self.elastic else self.launch), sys.executable, "-m", "hpcpar",
                   *self.words, "--checkpoint", str(self.checkpoint), "--out",
                   str(self.folder / "run.h5"), *["--elastic"] * self.elastic, *resume]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)

    def processes(self) -> list[int]:
        """All processes of the job; the launcher is one of them."""
        mark, found = os.fsencode(self.checkpoint), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def strike(self, number: signal.Signals) -> Fate:
        """Sends the signal after a random checkpoint and a random pause."""
        job, after = self.start(), self.random.randrange(0, STEPS + EVERY, EVERY)
        while job.poll() is None and (step_of(self.checkpoint) if after else 0) < after:
            time.sleep(0.005)
        pause_s = self.random.uniform(0.0, 1.0)
        time.sleep(pause_s * (3.0 if after == 0 else 0.3))
        victims = {"launcher": [job.pid], "one": [], "all": self.processes()}
        victims["one"] = [self.random.choice(victims["all"])] if victims["all"] else [job.pid]
        whom = self.random.choice(["launcher", "one"] if self.elastic else [*victims])
        kill(victims[whom], number)
        status = job.wait(LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        fate = Fate(number.name, status, step_of(self.checkpoint) == STEPS)
        if self.processes():
            fate.faults.append("left behind")
            kill(self.processes())
        deadly = DEADLY[self.launch[0]] if job.pid in victims[whom] and not self.elastic else ()
        if fate.done and status and number != signal.SIGKILL and number not in deadly:
            fate.faults.append("wrong status")
        return fate

    def check(self, fate: Fate, reference: dict[str, bytes]) -> Fate:
        """Resumes the training until it is done, and looks at its files."""
        rest = self.start()
        if rest.wait(LIMIT_S):
            fate.faults.append("wrong status")
            return fate
        done: Counter[int] = Counter()
        for path in self.folder.glob("run*.h5"):
            if path.name not in FOREIGN:
                with h5py.File(path) as f:
                    done.update(f["iterations_done"][:].tolist())
        alone = len(list(self.folder.glob("run*.h5"))) == 2
        if any(step not in done for step in range(STEPS)):
            fate.faults.append("holes")
        if max(done.values()) > 1:
            fate.faults.append("repeated")
        # on fewer ranks, sums are rounded otherwise
        if torn(self.checkpoint) or (alone and tensors(self.checkpoint) != reference):
            fate.faults.append("other weights")
        if any((self.folder / name).read_text() != "mine" for name in FOREIGN):
            fate.faults.append("files of others")
        names = {p.name for p in self.folder.iterdir()} - {*FOREIGN, "log", "w.h5", "run.h5"}
        own = [name for name in names if name.startswith("w.step")]
        # a kill between a checkpoint and the removal of the oldest leaves one more
        if len(own) > 2 or any(name.startswith(".") for name in names):
            fate.faults.append("left behind")
        return fate


def tensors(path: Path) -> dict[str, bytes]:
    """The bytes of every tensor in a checkpoint."""
    out: dict[str, bytes] = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, item: out.update({name: item[...].tobytes()})
                     if isinstance(item, h5py.Dataset) else None)
    return out


def case(make: Callable[[int], Case], reference: dict[str, bytes], number: int) -> Fate:
    """Runs one case, and prints its faults."""
    one = make(number)
    fate = one.check(one.strike(SIGNALS[number % len(SIGNALS)]), reference)
    print(number, fate, file=sys.stderr, flush=True)
    if fate.faults:
        log = (one.folder / "log").read_text(errors="replace")[-2000:]
        print(f"BROKEN: case {number}, {fate}, {sorted(p.name for p in one.folder.iterdir())}\n"
              f"{log}", file=sys.stderr, flush=True)
    return fate


def main() -> int:
    """Prints the table; returns 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first signal")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    parser.add_argument("--launcher", choices=("mpiexec", "srun"), default="mpiexec")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    launch = {"mpiexec": ["mpiexec", "-n", "2"],
              "srun": ["srun", "--mpi=pmi2", "-N1", "-n2", "--kill-on-bad-exit=1"]}[args.launcher]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, plan = folder / "digits.h5", folder / "plan.json"
        hpcpar("data", "digits", data)
        hpcpar("plan", "--network", "lenet5", "--input", "1x8x8", "--batch", 16, "--ranks", 2,
               "--strategy", "data", "-o", plan)
        words = ["run", "--plan", str(plan), "--data", str(data), "--steps", str(STEPS),
                 "--checkpoint-every", f"{EVERY}steps", "--keep", "2", "--seed", "3"]

        def make(number: int) -> Case:
            own = folder / str(number)
            own.mkdir()
            for name in FOREIGN:
                (own / name).write_text("mine")
            elastic = args.launcher == "mpiexec" and number // len(SIGNALS) % 6 == 5
            return Case(own, words, launch, elastic, random.Random(f"{args.seed} {number}"))

        calm = make(-1)
        assert calm.start().wait(LIMIT_S) == 0, (calm.folder / "log").read_text()
        with ThreadPoolExecutor(args.workers) as pool:
            fates = list(pool.map(partial(case, make, tensors(calm.checkpoint)),
                                  range(args.first, args.first + args.count)))
    rows = []
    for number in SIGNALS:
        found = [fate for fate in fates if fate.signal == number.name]
        faults = Counter(fault for fate in found for fault in fate.faults)
        rows.append((number.name, len(found), sum(fate.done for fate in found),
                     sum(fate.status == STATUS for fate in found),
                     sum(fate.status not in (0, STATUS) for fate in found),
                     *(faults[name] for name in COLUMNS[5:])))
    show("Signals at random moments", COLUMNS, rows)
    return int(any(fate.faults for fate in fates))


if __name__ == "__main__":
    sys.exit(main())
