"""Faults: jobs that are killed, stopped, or out of disk, and the work that is lost.

Run: ``python bench/faults.py`` (an hour; ``--parts``, ``--kills``, ``--minutes``, ``--quick``).
LeNet-5 trains on the handwritten digits, with a checkpoint every 200 iterations, some tenths of a
second: longer than a checkpoint takes to be written. It exits with 1 where a checkpoint is torn,
more than one interval is lost, an end takes longer than 10 s, or the loss curve differs from one
undisturbed rank's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from bench.fault_jobs import Training, hpcpar, kill, step_of, torn  # noqa: E402
from hpcpar.report.tables import show  # noqa: E402

#: Iterations between two checkpoints, and of a life that nobody ends.
EVERY, LENGTH = 200, 10**6
#: A small rate: a larger one amplifies rounding, which differs from plan to plan.
TRAINING = ("--rate", "0.0001", "--schedule", "constant", "--seed", "3")
SAVING = ("--checkpoint-every", f"{EVERY}steps", "--keep", "2")
#: Ranks and strategies that take turns.
PLANS = ((2, "data"), (3, "spatial"), (2, "filter"), (1, "data"))
#: Columns of the table.
COLUMNS = ("fault", "times", "torn", "beyond an interval", "left behind", "to the end", "to go on",
           "loss")
Row = tuple[object, ...]


class Bench:
    """Data, plans and the loss curve that nobody disturbs, in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.broken = folder, random.Random(seed), False
        self.data = folder / "digits.h5"
        hpcpar("data", "digits", self.data)
        self.plans = [(self.plan(*each), each[0]) for each in PLANS]

    def plan(self, ranks: int, strategy: str, batch: int = 16) -> Path:
        path = self.folder / f"{strategy}-{ranks}-{batch}.json"
        if not path.exists():
            hpcpar("plan", "--network", "lenet5", "--input", "1x8x8", "--batch", batch, "--ranks",
                   ranks, "--strategy", strategy, "--precision", "fp64", "-o", path)
        return path

    def training(self, name: str, *options: object) -> Training:
        folder = self.folder / name
        folder.mkdir()
        return Training(folder, self.data, (*TRAINING, *options))

    def curve(self, steps: int, batch: int = 16) -> np.ndarray:
        """Losses of one rank that nobody disturbs."""
        alone = self.training(f"alone-{steps}-{batch}", "--steps", steps)
        fate = alone.finish(alone.start(self.plan(1, "data", batch), 1), limit_s=3600)
        assert fate.status == 0, fate.text
        return np.array([alone.losses[i] for i in range(steps)])

    def check(self, passes: bool, what: str) -> None:
        if not passes:
            self.broken = True
            print(f"BROKEN: {what}", file=sys.stderr)

    def same_loss(self, training: Training, batch: int = 16) -> str:
        """Compares the losses of all jobs with the undisturbed curve."""
        steps = sorted(training.losses)
        want = self.curve(steps[-1] + 1, batch)[steps]
        off = float(np.max(np.abs(np.array([training.losses[i] for i in steps]) / want - 1)))
        self.check(off < 1e-9, f"the loss is off by {off:.1e}")
        self.check(steps == [*range(steps[-1] + 1)], "iterations are missing")
        return f"{off:.0e} off"


def kills(bench: Bench, count: int) -> Row:
    """SIGKILL at a random moment: to one rank, or to every process of the job."""
    training = bench.training("kills", "--steps", LENGTH, *SAVING)
    broken = lost = left = 0
    end_s, start_s = [], []
    for number in range(count):
        plan, ranks = bench.plans[number // 5 % len(bench.plans)]
        job, done = training.start(plan, ranks), 0
        time.sleep(bench.random.uniform(0.1, 3.0))
        victims = training.ranks()
        if victims and bench.random.random() < 0.6:
            victims = [bench.random.choice(victims)]
        else:
            victims = [*training.processes(), job.pid]
        struck = time.time()
        kill(victims)
        fate = training.finish(job, struck)
        end_s.append(fate.end_s)
        start_s += [fate.start_s] if fate.start_s else []
        done = step_of(training.checkpoint)
        left += len(training.left())
        broken += sum(torn(path) for path in training.folder.glob("*.h5"))
        lost += training.last > done + EVERY + 1
        bench.check(fate.status != 0, f"kill {number}: status {fate.status}")
    job = training.start(*bench.plans[0])
    time.sleep(3)
    kill(training.ranks()[:1], signal.SIGTERM)
    training.finish(job)
    litter = [p.name for p in training.folder.iterdir() if p.name.startswith(".")]
    bench.check(not (broken or lost or left or litter), f"kills: {broken} torn, {lost} beyond an "
                f"interval, {left} processes and {litter} left behind")
    return ("killed", count, broken, lost, left + len(litter), _worst(end_s), _worst(start_s),
            bench.same_loss(training))


def signals(bench: Bench, count: int) -> Row:
    """Requests to stop, to a rank or to the launcher."""
    training = bench.training("signals", "--steps", LENGTH, *SAVING)
    late = broken = 0
    end_s, start_s = [], []
    for number in range(count):
        job = training.start(*bench.plans[number % 2])
        training.wait()
        time.sleep(bench.random.uniform(0.0, 1.0))
        name = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)[number % 3]
        targets = [job.pid, *training.processes()]
        struck = time.time()
        kill([bench.random.choice(targets)], name)
        fate = training.finish(job, struck)
        end_s.append(fate.end_s)
        start_s.append(fate.start_s)
        late += training.last != step_of(training.checkpoint)
        broken += torn(training.checkpoint)
        bench.check(fate.status == 75 and fate.end_s < 10, f"{name.name}: status {fate.status} "
                    f"after {fate.end_s:.1f} s: {fate.text[-300:]}")
    bench.check(not late, f"{late} checkpoints are not of the last iteration")
    return ("asked to stop", count, broken, late, len(training.left()), _worst(end_s),
            _worst(start_s), bench.same_loss(training))


def disk(bench: Bench, count: int) -> Row:
    """Disks that fill up, of random size."""
    broken = wrong = left = 0
    end_s = []
    for number in range(count):
        training = bench.training(f"disk{number}", "--steps", LENGTH, *SAVING)
        size = bench.random.randrange(1000, 3500)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none",
                        str(training.folder)], check=True)
        try:
            job = training.start(*bench.plans[0], "--out", training.folder / "run.h5")
            while not training.checkpoint.exists() and job.poll() is None:
                time.sleep(0.02)
            struck = time.time()
            with suppress(OSError), open(training.folder / "fill", "wb", buffering=0) as f:
                while True:
                    f.write(bytes(1 << 12))
            fate = training.finish(job, struck)
            end_s.append(fate.end_s)
            lines = [x for x in fate.text.splitlines() if x.startswith("hpcpar: ")]
            wrong += not (fate.status == 1 and len(lines) == 1 and "No space left" in lines[0])
            broken += any(torn(p) for p in training.folder.glob("c*.h5"))
            left += sum(p.name.startswith(".") for p in training.folder.iterdir())
        finally:
            subprocess.run(["umount", str(training.folder)], check=True)
    bench.check(not (wrong or broken or left), f"full disks: {wrong} without their one line, "
                f"{broken} torn, {left} left behind")
    return ("disk full", count, broken, "-", left, _worst(end_s), "-", "-")


def stopped(bench: Bench, count: int) -> Row:
    """Ranks that stand still."""
    training = bench.training("stopped", "--steps", LENGTH, *SAVING)
    unnamed, end_s = 0, []
    for number in range(count):
        job = training.start(*bench.plans[0], HPCPAR_STALL_S="5")
        training.wait()
        time.sleep(bench.random.uniform(0.0, 0.5))
        struck = time.time()
        kill(training.ranks()[number % 2:][:1], signal.SIGSTOP)
        fate = training.finish(job, struck)
        end_s.append(fate.end_s)
        unnamed += "nothing has arrived for 5 s from rank" not in fate.text
    bench.check(not unnamed, f"{unnamed} stopped ranks were not named")
    return ("stands still (limit 5 s)", count, int(torn(training.checkpoint)), "-",
            len(training.left()), _worst(end_s), "-", "-")


def minutes(bench: Bench, length: int) -> Row:
    """A kill a minute, under ``--elastic``, on 4 ranks."""
    plan, batch = bench.plan(4, "data", 512), 512
    calm = bench.training("calm", "--steps", 600, "--checkpoint-every", "10s")
    begin = time.time()
    assert calm.finish(calm.start(plan, 4), limit_s=3600).status == 0
    each_s = (time.time() - begin) / 600
    steps = int(length * 60 / each_s / 1.1)
    training = bench.training("elastic", "--steps", steps, "--checkpoint-every", "10s")
    job = training.start(plan, 0, "--elastic", "--elastic-return", "20s")
    begin, count = time.time(), 0
    while job.poll() is None:
        if time.time() > begin + 60 * (count + 1) and (victims := training.ranks()):
            kill([bench.random.choice(victims)])
            count += 1
        time.sleep(0.1)
    total_s = time.time() - begin
    fate = training.finish(job)
    ratio = total_s / (steps * each_s)
    bench.check(fate.status == 0 and ratio < 1.25, f"a kill a minute: status {fate.status}, "
                f"{ratio:.2f} of the time of an undisturbed run")
    return (f"a kill a minute, {total_s / 60:.0f} min", count, int(torn(training.checkpoint)), "-",
            len(training.left()), f"{ratio:.2f} of an undisturbed run", "-",
            bench.same_loss(training, batch))


def restart(bench: Bench, count: int) -> Row:
    """AlexNet on 4 ranks under ``--elastic``: from the kill of a rank to the next iteration."""
    plan, data = bench.folder / "alexnet.json", bench.folder / "alexnet.h5"
    hpcpar("plan", "--network", "alexnet", "--ranks", 4, "--batch", 16, "--strategy", "data",
           "--force", "-o", plan)
    hpcpar("data", "synthetic", data, "--input", "3x227x227", "--classes", 1000, "--samples", 64)
    folder, start_s, broken = bench.folder / "restart", [], 0
    folder.mkdir()
    for _ in range(count):
        training = Training(folder, data, (*TRAINING, "--steps", LENGTH, "--checkpoint-every",
                                           "5steps"))
        training.checkpoint.unlink(missing_ok=True)
        job = training.start(plan, 0, "--elastic")
        while not training.checkpoint.exists() and job.poll() is None:
            time.sleep(0.1)
        struck = time.time()
        kill([bench.random.choice(training.ranks())])
        while "continuing with 3 ranks" not in training.told and job.poll() is None:
            time.sleep(0.02)
        done = training.iterations
        while training.iterations == done and job.poll() is None:
            time.sleep(0.02)
        start_s.append(time.time() - struck)
        job.terminate()
        fate = training.finish(job)
        broken += torn(training.checkpoint)
        bench.check(fate.status == 75 and start_s[-1] < 10,
                    f"AlexNet: status {fate.status}, {start_s[-1]:.1f} s to the next iteration")
    return ("a rank of AlexNet killed", count, broken, "-", len(training.left()), "-",
            _worst(start_s), "-")


def _worst(seconds: list[float]) -> str:
    """Median and maximum."""
    return f"{statistics.median(seconds):.1f} s, {max(seconds):.1f} at most" if seconds else "-"


#: The parts, with how often or how many minutes, and in a quick run.
PARTS: dict[str, tuple[Callable[[Bench, int], Row], int, int]] = {
    "kills": (kills, 200, 4), "signals": (signals, 30, 3), "disk": (disk, 10, 1),
    "stopped": (stopped, 6, 1), "restart": (restart, 5, 0), "minutes": (minutes, 20, 0)}


def main() -> int:
    """Prints the table; returns 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them (default all)")
    parser.add_argument("--quick", action="store_true", help="a few of each: a minute")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.seed)
        for name in args.parts.split(","):
            run, count, few = PARTS[name]
            count = few if args.quick else getattr(args, name, count)
            if name == "disk" and os.geteuid() != 0:
                print("disk: left out, only root mounts a small file system", file=sys.stderr)
            elif count:
                rows.append(run(bench, count))
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    show("Faults", COLUMNS, rows)
    return int(bench.broken)


if __name__ == "__main__":
    sys.exit(main())
