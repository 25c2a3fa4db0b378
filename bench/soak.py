"""Resident memory of a rank over a million iterations, with and without a record.

Run: ``python bench/soak.py`` (a quarter of an hour; ``--iterations 100000`` for a shorter one).
Two training runs of one rank go side by side, the smallest that there are, so that any growth with
iterations shows. The iterations that a run keeps fill up in the first half. The exit status is 1
where a process grows by more than `MOST_BYTES` in the second half.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import h5py  # noqa: E402
import numpy as np  # noqa: E402

from bench.fault_jobs import environment, hpcpar  # noqa: E402
from hpcpar.report.tables import amount, seconds, show  # noqa: E402

#: Growth that counts as noise: a record being written, and pages that allocators keep.
MOST_BYTES = 16 << 20
#: Samples of the data file: an epoch of the smallest batches, so that epochs are few.
SAMPLES = 50_000


def resident_bytes(pid: int) -> int:
    """The resident set of a process; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("VmRSS")), 0)


def main() -> int:
    """Prints the table; returns 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--iterations", type=int, default=10**6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan, data, log = (Path(folder) / name for name in ("plan.json", "data.h5", "log"))
        hpcpar("plan", "--network", "mlp", "--input", "1x2x2", "--ranks", 1, "--batch", 1, "-o",
               plan)
        with h5py.File(data, "w") as f:
            rng = np.random.default_rng(0)
            f["images"] = rng.integers(0, 256, (SAMPLES, 1, 2, 2), np.uint8)
            f["labels"] = rng.integers(0, 10, SAMPLES)
            f.attrs["classes"] = 10
        run = [sys.executable, "-m", "hpcpar", "run", "--plan", str(plan), "--data", str(data),
               "--steps", str(args.iterations), "--rate", "0.0001"]
        rows, grows = [], False
        jobs = {}
        for name, more in (("without a record", []), ("--out", ["--out", f"{folder}/run.h5"])):
            with open(f"{log}-{name}", "w") as told:
                jobs[name] = subprocess.Popen([*run, *more], env=environment(), stdout=told,
                                              stderr=told)
        begin_s = time.monotonic()
        sizes: dict[str, list[tuple[float, int]]] = {name: [] for name in jobs}
        ends_s: dict[str, float] = {}
        while len(ends_s) < len(jobs):
            time.sleep(1.0)
            now_s = time.monotonic() - begin_s
            for name, job in jobs.items():
                if job.poll() is None:
                    sizes[name].append((now_s, resident_bytes(job.pid)))
                else:
                    ends_s.setdefault(name, now_s)
        for name, job in jobs.items():
            if job.returncode:
                sys.exit(Path(f"{log}-{name}").read_text())
            first, half, last = (sizes[name][int(share * (len(sizes[name]) - 1))][1]
                                 for share in (0.1, 0.5, 0.95))
            most = max(size for at_s, size in sizes[name] if at_s > 0.5 * ends_s[name])
            grows |= most - half > MOST_BYTES
            rows.append((name, f"{args.iterations:,}", seconds(ends_s[name]), amount(first),
                         amount(half), amount(last), amount(most)))
    show("resident memory of a rank", ("training", "iterations", "took", "after a tenth",
                                       "after half", "at the end", "at most"), rows, left=1)
    return int(grows)


if __name__ == "__main__":
    sys.exit(main())
