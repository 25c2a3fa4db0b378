"""The time that a checkpoint takes from a training run, written while the training goes on.

Run: ``python bench/checkpoints.py`` (some minutes; ``--network``, ``--ranks``, ``--batch``).
Jobs with and without checkpoints on the way train alike, in turn. The overhead is
the time that a checkpoint adds to a job, over the time between two checkpoints (10 minutes). The
exit status is 1 above 1%.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hpcpar import load_network  # noqa: E402
from hpcpar.network.layers.base import shape_text  # noqa: E402

#: Share of the training that checkpoints may take, and the time between two (s).
MOST, APART_S = 0.01, 600.0
#: Iterations of a job; of one with checkpoints, each of these writes one.
STEPS, EVERY = 24, 6


def hpcpar(*words: object, ranks: int = 0) -> float:
    """Seconds of a command."""
    command = [sys.executable, "-m", "hpcpar", *map(str, words)]
    launch = ["mpiexec", "-n", str(ranks)] if ranks else []
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    begin_s = time.perf_counter()
    subprocess.run([*launch, *command], check=True, cwd=ROOT, env=env, capture_output=True)
    return time.perf_counter() - begin_s


def main() -> int:
    """Prints the time of a checkpoint; returns 1 where it takes too much."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--network", default="alexnet")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5, help="jobs of each kind")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan, data, save = (Path(folder) / name for name in ("plan.json", "data.h5", "c.h5"))
        hpcpar("plan", "--network", args.network, "--ranks", args.ranks, "--batch", args.batch,
               "--strategy", "data", "--force", "-o", plan)
        net = load_network(args.network)
        hpcpar("data", "synthetic", data, "--input", shape_text(net.image_shape), "--classes",
               net.classes, "--samples", 4 * args.batch)
        run = ("run", "--plan", plan, "--data", data, "--steps", STEPS, "--overwrite")
        each = ("--checkpoint", save, "--checkpoint-every", f"{EVERY}steps")
        # one checkpoint at the end, which nothing hides, in both kinds
        once = ("--checkpoint", save, "--checkpoint-every", f"{STEPS}steps")
        more_s = [hpcpar(*run, *each, ranks=args.ranks) - hpcpar(*run, *once, ranks=args.ranks)
                  for _ in range(args.pairs)]
        size = save.stat().st_size
    cost_s = statistics.median(more_s) / (STEPS // EVERY - 1)
    print(f"{args.network} on {args.ranks} ranks: a checkpoint of {size / 1e6:.0f} MB takes "
          f"{cost_s:.2f} s from the training, {cost_s / APART_S:.2%} of it every "
          f"{APART_S / 60:.0f} minutes")
    return int(cost_s / APART_S > MOST)


if __name__ == "__main__":
    sys.exit(main())
