"""The speed of predictions: their rate on one core, and their time over the number of ranks.

Run: ``python bench/predictions.py``. Times are medians of several runs; the limits are the
project's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


from hpcpar.cost.price_family import price_family  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.network.builtin import network  # noqa: E402
from hpcpar.plan.plan import NetworkSpec, Overlap, Plan, make_plan  # noqa: E402
from hpcpar.plan.strategies import fill, together  # noqa: E402
from hpcpar.plan.strategy import grid_sizes  # noqa: E402
from hpcpar.prediction.price import price  # noqa: E402
from hpcpar.report.tables import show  # noqa: E402

#: Network -> lowest acceptable rate of predictions on one core (1/s).
LEAST = {"alexnet": 200, "resnet152": 20}
SHAPES = {"alexnet": (3, 227, 227), "resnet152": (3, 224, 224)}
#: Highest acceptable ratio of the times of a prediction for 2^20 ranks and for 16.
MOST_RATIO = 3.0
#: Ranks and batches whose grids are priced, all grids of a number of ranks at once.
RANKS = (24, 120, 720, 5040)
BATCHES = (256, 1024, 4096)


def median_s(action: Callable[[], Any], runs: int) -> float:
    """Median processor seconds of an action, after one run that fills caches."""
    action()
    times = []
    for _ in range(runs):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def rate(name: str, strategy: str, machine_name: str, overlap: Overlap, runs: int) -> float:
    """Predictions per second, with lowering and pricing."""
    machine, spec = files.load(machine_name), NetworkSpec(name, SHAPES[name], 1000)
    net = spec.build()
    count = len(BATCHES) * sum(len(grid_sizes(ranks)) for ranks in RANKS)

    def once() -> None:
        for ranks in RANKS:
            grids = together([fill(net, strategy, ranks, grid) for grid in grid_sizes(ranks)])
            for batch in BATCHES:
                plan = Plan(spec, ranks, batch, strategy, grids, overlap=overlap)
                price_family(net, plan, machine)

    return count / median_s(once, runs)


def many_ranks(strategy: str, runs: int) -> tuple[float, float]:
    """Seconds of one prediction of ResNet-152 at 16 ranks and at 2^20, 32 samples per rank."""
    machine = files.load("abci-v100")
    net = network("resnet152")
    spec = NetworkSpec("resnet152", net.image_shape, net.classes)
    out = []
    for ranks in (16, 1 << 20):
        grid = ""
        if strategy in ("df", "ds"):
            grid = f":{ranks // 4}x4"
        elif strategy == "domain":
            grid = f":4x{ranks // 4}"

        def once(ranks: int = ranks, grid: str = grid) -> None:
            price(net, make_plan(spec, strategy + grid, ranks, 32 * ranks, network=net,
                                 machine=machine), machine)

        out.append(median_s(once, runs))
    return out[0], out[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each measurement (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    rates: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for name in LEAST:
        for strategy, machine, overlap in (("grid", "cori-knl", Overlap.NONE),
                                           ("domain", "abci-v100", Overlap.FULL),
                                           ("ds", "abci-v100", Overlap.FULL)):
            found = rate(name, strategy, machine, overlap, args.runs)
            rates.append(
                {"network": name, "strategy": strategy, "machine": machine, "overlap": overlap,
                 "per_s": found, "times_the_limit": found / LEAST[name]}
            )
    for strategy in ("data", "df", "ds", "domain"):
        few, many = many_ranks(strategy, args.runs)
        ratios.append({"strategy": strategy, "at_16_s": few, "at_1048576_s": many,
                       "ratio": many / few})
    if args.json:
        print(json.dumps({"predictions": rates, "ranks": ratios}))
        return
    show(
        "predictions a second on one core",
        ("network", "strategy", "machine", "overlap", "a second", "times the limit"),
        [
            (r["network"], r["strategy"], r["machine"], r["overlap"], f"{r['per_s']:.0f}",
             f"{r['times_the_limit']:.1f}")
            for r in rates
        ],
        left=4,
    )
    show(
        f"one prediction of resnet152 (at most {MOST_RATIO:g} times as long for 1,048,576 ranks as "
        "for 16)", ("strategy", "16 ranks", "1,048,576 ranks", "ratio"),
        [
            (r["strategy"], f"{r['at_16_s'] * 1e3:.0f} ms", f"{r['at_1048576_s'] * 1e3:.0f} ms",
             f"{r['ratio']:.2f}")
            for r in ratios
        ],
    )


if __name__ == "__main__":
    main()
