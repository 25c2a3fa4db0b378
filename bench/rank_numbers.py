"""The time of a prediction over the number of ranks: odd numbers beside powers of two.

Run: ``python bench/rank_numbers.py``. Each prediction runs in a process of its own, forked after a
prediction for 16 ranks, so that none profits from another's. Times are processor seconds, the least
of several runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from hpcpar.api.predict import predict  # noqa: E402
from hpcpar.report.tables import show  # noqa: E402

#: Highest acceptable ratio to the time of the next power of two.
MOST_RATIO = 2.0
#: The largest number of ranks, and its highest acceptable ratio to the time of `FEW` ranks.
MANY, FEW, MOST_GROWTH = 1 << 20, 16, 3.0


def predict_s(network: str, machine: str, precision: str, ranks: int) -> float:
    """Processor seconds of a prediction: data parallel, 32 samples per rank, local statistics."""
    begin = time.process_time()
    predict(network=network, machine=machine, ranks=ranks, batch=32 * ranks, strategy="data",
            precision=precision, batch_norm="local")
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--machine", default="dgx-a100")
    parser.add_argument("--precision", default="amp")
    parser.add_argument("--count", type=int, default=50, help="random numbers of ranks")
    parser.add_argument("--most", type=int, default=10_000, help="largest of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="runs of each prediction")
    args = parser.parse_args()
    case = args.network, args.machine, args.precision
    predict_s(*case, FEW)
    numbers = sorted(random.Random(args.seed).sample(range(2, args.most + 1), args.count))
    above = [1 << (ranks - 1).bit_length() for ranks in numbers]
    seconds: dict[int, float] = {}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for ranks in dict.fromkeys((FEW, MANY, *above, *numbers)):
            seconds[ranks] = min(pool.starmap(predict_s, [(*case, ranks)] * args.runs, 1))
    ratios = [seconds[ranks] / seconds[power]
              for ranks, power in zip(numbers, above, strict=True)]
    show(f"one prediction of {args.network} on {args.machine}, data parallel, {args.precision}",
         ("ranks", "CPU s", "next power of two", "CPU s", "ratio"),
         [(f"{ranks:,}", f"{seconds[ranks]:.2f}", f"{power:,}", f"{seconds[power]:.2f}",
           f"{ratio:.2f}") for ranks, power, ratio in zip(numbers, above, ratios, strict=True)])
    within = sum(ratio <= MOST_RATIO for ratio in ratios)
    print(f"{within} of {len(numbers)} within {MOST_RATIO:g} times the next power of two, at most "
          f"{max(ratios):.2f}; {MANY:,} ranks take {seconds[MANY] / seconds[FEW]:.2f} times as "
          f"long as {FEW} (limit {MOST_GROWTH:g})")


if __name__ == "__main__":
    main()
