"""The layer-wise search: its time, an integer program beside it, and published plans.

Run: ``python bench/search.py`` (minutes; ``--quick`` for less), on one core. Times of searches are
medians with the tables included, beside the first call of a process, which also computes the
network's shapes. The limits are the project's own. The published times are from other machines,
with tables measured on the devices. The integer program (`bench.integer_program`) gets the same
tables. `bench.published_plans` compares plans.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.integer_program import integer_program, solve_program  # noqa: E402
from bench.networks import deep, dense  # noqa: E402
from bench.papers import layerwise as published  # noqa: E402
from bench.published_plans import plan_row  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.report.tables import amount, show  # noqa: E402
from hpcpar.search.edge_elimination import solve  # noqa: E402
from hpcpar.search.table_search import Search  # noqa: E402

IMAGES = published.IMAGES
#: (network, ranks) -> seconds that OptCNN (4) and DeePa (16) published, and the project's limit.
TIMES = {
    ("alexnet", 4): (0.02, 0.15), ("vgg16", 4): (0.1, 0.2), ("inception_v3", 4): (0.4, 0.5),
    ("alexnet", 16): (0.7, 0.4), ("vgg16", 16): (1.1, 0.6), ("inception_v3", 16): (4.8, 2.0),
}
#: Limit (s) for ResNet-152 on 1024 ranks.
LARGE_S = 10.0
#: Number of processes whose first search is timed.
PROCESSES = 5
#: Limits of an integer program: seconds, and continuous variables.
PROGRAM_S, PROGRAM_SIZE = 60.0, 400_000


# -- time ------------------------------------------------------------------------------------------
def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = action()
    return time.perf_counter() - begin, found


def cpu_timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and processor seconds, which other processes on the machine do not disturb."""
    begin = time.process_time()
    passed, _ = timed(action)
    return passed, time.process_time() - begin


def median_s(action: Callable[[], Any], runs: int) -> float:
    return statistics.median(timed(action)[0] for _ in range(runs))


def spec_of(name: str) -> NetworkSpec:
    """The papers' version of AlexNet, VGG-16 and Inception-v3; the built-in version of others."""
    if name in published.NETWORKS:
        return published.spec(name)
    return NetworkSpec(name, (3, 224, 224), 1000)


def search(net: Network, spec: NetworkSpec, ranks: int, machine: Machine) -> Search:
    return Search(net, spec, ranks, IMAGES * ranks, machine)


def searches(name: str, ranks: int, machine: str) -> Callable[[], Any]:
    """A search to repeat; the first call also computes the network's shapes."""
    spec, loaded = spec_of(name), files.load(machine)
    net = spec.build()
    return lambda: search(net, spec, ranks, loaded).best()


def of_a_new_network_s(name: str, ranks: int, machine: str, runs: int) -> float:
    """Median seconds of searches on a new network object, in a warm process."""
    spec, loaded = spec_of(name), files.load(machine)

    def once() -> float:
        net = spec.build()
        return timed(lambda: search(net, spec, ranks, loaded).best())[0]

    return statistics.median(once() for _ in range(runs))


def first_of_a_process_s(name: str, ranks: int, machine: str) -> float:
    """Median seconds of the first search of a process, without its imports."""
    command = [sys.executable, __file__, "--first", name, str(ranks), machine]
    return statistics.median(float(subprocess.run(command, check=True, capture_output=True).stdout)
                             for _ in range(PROCESSES))


def search_row(name: str, ranks: int, machine: str, runs: int) -> dict[str, Any]:
    """Times of one search, tables included: first of a process, of a new network, and repeated."""
    once = searches(name, ranks, machine)
    own_s, found = timed(once)
    first_s = first_of_a_process_s(name, ranks, machine) if runs else own_s
    new_s = of_a_new_network_s(name, ranks, machine, runs) if runs else own_s
    times = [cpu_timed(once) for _ in range(runs)]
    median, cpu = (statistics.median(t for t, _ in times),
                   min(t for _, t in times)) if times else (first_s, None)
    theirs, limit = TIMES.get((name, ranks), (None, LARGE_S))
    return {"network": name, "ranks": ranks, "machine": machine, "median_s": median, "cpu_s": cpu,
            "new_s": new_s, "first_s": first_s, "search_s": found.search_s, "published_s": theirs,
            "limit_s": limit, "times_the_limit": first_s / limit,
            "configurations": found.configurations, "kept": found.kept,
            "K": found.eliminations.kept, "edge_eliminations": found.eliminations.edges,
            "objective_s": found.objective_s, "exact": found.exact}


# -- curves ----------------------------------------------------------------------------------------
def by_ranks(most: int, runs: int) -> list[dict[str, Any]]:
    """Times of ResNet-50's search over numbers of ranks."""
    return [search_row("resnet50", 2**i, "abci-v100", runs) for i in range(1, 11) if 2**i <= most]


def by_layers(counts: tuple[int, ...], runs: int) -> list[dict[str, Any]]:
    """Times over the depth of a chain, on 16 ranks."""
    out, machine = [], files.load("p100x4x4")
    for count in counts:
        net = deep(count)
        spec = NetworkSpec(net.name, net.image_shape, net.classes)
        first_s, found = timed(lambda net=net, spec=spec: search(net, spec, 16, machine).best())  # type: ignore[misc]
        median = median_s(lambda net=net, spec=spec: search(net, spec, 16, machine).best(), runs)  # type: ignore[misc]
        out.append(
            {"convolutions": count, "layers": len(net.layers), "median_s": median,
             "first_s": first_s, "search_s": found.search_s, "configurations": found.configurations,
             "kept": found.kept}
        )
    return out


# -- approximate elimination -----------------------------------------------------------------------
def dense_row(blocks: tuple[int, ...], ranks: int) -> dict[str, Any]:
    """Time, and gap to the bound, on a network too dense for exact elimination."""
    net = dense(blocks)
    spec, machine = NetworkSpec(net.name, net.image_shape, net.classes), files.load("p100x4x4")
    first_s, found = timed(lambda: search(net, spec, ranks, machine).best())
    return {"blocks": list(blocks), "layers": len(net.layers), "ranks": ranks,
            "K": found.eliminations.kept, "first_s": first_s, "search_s": found.search_s,
            "objective_s": found.objective_s, "above": found.objective_s / found.bound_s - 1}


# -- beside an integer program ---------------------------------------------------------------------
def peer_row(name: str, ranks: int, runs: int) -> dict[str, Any]:
    """Elimination and the integer program on the same tables."""
    tables = search(published.network(name), spec_of(name), ranks, files.load("p100x4x4")).tables
    nodes, edges = ([t.seconds for t in tables.nodes],
                    {pair: t.seconds for pair, t in tables.edges.items()})
    ours_s, (objective, _) = median_s(lambda: solve(nodes, edges), runs), solve(nodes, edges)
    row: dict[str, Any] = {"network": name, "ranks": ranks, "ours_s": ours_s,
                           "objective_s": objective, "configurations": sum(map(len, nodes)),
                           "pairs": sum(t.size for t in edges.values()), "program_s": None,
                           "ratio": None, "difference": None}
    if row["pairs"] > PROGRAM_SIZE:
        return row
    p = integer_program(nodes, edges)
    program_s, chosen = timed(lambda: solve_program(p, PROGRAM_S))
    row["program_s"] = program_s
    if chosen is not None:
        row["ratio"], row["difference"] = (program_s / ours_s,
                                           abs(tables.price(chosen) / objective - 1))
    return row


# -- output ----------------------------------------------------------------------------------------
def seconds(value: float | None) -> str:
    """A time with its unit, as in 12.3 ms."""
    return "-" if value is None else f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def show_all(data: dict[str, Any]) -> None:
    show(
        "a search, tables included, on one core (published: OptCNN's on 4 GPUs, DeePa's on 16)",
        ("network", "ranks", "median", "least CPU", "new network", "first call", "solving alone",
         "published", "limit", "times the limit", "configurations", "kept"),
        [
            (r["network"], r["ranks"], seconds(r["median_s"]), seconds(r["cpu_s"]),
             seconds(r["new_s"]), seconds(r["first_s"]), seconds(r["search_s"]),
             seconds(r["published_s"]), seconds(r["limit_s"]), f"{r['times_the_limit']:.2f}",
             r["configurations"], r["kept"])
            for r in data["searches"]
        ],
        left=1,
    )
    show(
        "resnet50 on abci-v100 over numbers of ranks",
        ("ranks", "median", "first call", "solving alone", "configurations", "kept"),
        [
            (r["ranks"], seconds(r["median_s"]), seconds(r["first_s"]), seconds(r["search_s"]),
             r["configurations"], r["kept"])
            for r in data["ranks"]
        ],
        left=0,
    )
    show(
        "chains of unlike convolutions on 16 ranks",
        ("convolutions", "layers", "median", "first call", "solving alone", "configurations",
         "kept"),
        [
            (r["convolutions"], r["layers"], seconds(r["median_s"]), seconds(r["first_s"]),
             seconds(r["search_s"]), r["configurations"], r["kept"])
            for r in data["layers"]
        ],
        left=0,
    )
    show(
        "DenseNet's blocks",
        ("layers of a block", "layers", "ranks", "K", "first call", "solving alone",
         "above the optimum, at most"),
        [
            (", ".join(map(str, r["blocks"])), r["layers"], r["ranks"], r["K"],
             seconds(r["first_s"]), seconds(r["search_s"]), f"{r['above']:.1e}")
            for r in data["dense"]
        ],
        left=1,
    )
    show(
        f"elimination and an integer program (HiGHS, at most {PROGRAM_S:g} s) on the same tables",
        ("network", "ranks", "configurations", "pairs", "elimination", "integer program", "ratio",
         "optima differ by"),
        [
            (r["network"], r["ranks"], r["configurations"], r["pairs"], seconds(r["ours_s"]),
             seconds(r["program_s"]), "-" if r["ratio"] is None else f"{r['ratio']:.0f}",
             "-" if r["difference"] is None else f"{r['difference']:.1e}")
            for r in data["programs"]
        ],
        left=1,
    )
    for r in data["plans"]:
        show(f"{r['network']} on {r['ranks']} ranks of {r['machine']}; over the published plan: "
             f"{r['ratios']['ours']:.3f}, in the papers' space {r['ratios']['papers_space']:.3f}, "
             f"under the papers' costs {r['ratios']['papers_costs']:.3f}",
             ("layers", "ours", "papers' space", "papers' costs", "published"),
             [(g["layers"], *(g[key] for key in PLANS)) for g in r["groups"]]
             + [(what, *(form(r[key][field]) for key in PLANS)) for what, field, form in ROWS],
             left=5)


PLANS = ("ours", "papers_space", "papers_costs", "published")
#: The last rows of a table of plans.
ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("sum of all steps", "sum_s", seconds), ("of it computing", "compute_s", seconds),
    ("sent by a rank", "sent_bytes", amount), ("under the papers' costs", "papers_s", seconds),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each measurement (default 5)")
    parser.add_argument("--quick", action="store_true", help="fewer networks, ranks and runs")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--first", nargs=3, metavar=("NETWORK", "P", "MACHINE"),
                        help="one search, and its seconds on stdout")
    args = parser.parse_args()
    if args.first:
        name, ranks, machine = args.first
        print(timed(searches(name, int(ranks), machine))[0])
        return
    runs = 1 if args.quick else args.runs
    names = published.NETWORKS[:2] if args.quick else published.NETWORKS
    large: list[tuple[str, int, str, int]] = (
        [] if args.quick else [("resnet152", 1024, "abci-v100", 0)]
    )
    dense_cases: list[tuple[tuple[int, ...], int]] = [((6, 12), 4)]
    if not args.quick:
        dense_cases += [((6, 12, 24, 16), 4), ((6, 12, 24, 16), 16)]
    cases = [(each, count, "p100x4x4", runs) for count in (4, 16) for each in names]
    data: dict[str, Any] = {
        "searches": [search_row(*case) for case in [*cases, *large]],
        "ranks": by_ranks(8 if args.quick else 1024, 0 if args.quick else 1),
        "layers": by_layers((4, 8) if args.quick else (4, 8, 16, 32, 64), min(runs, 3)),
        "dense": [dense_row(blocks, count) for blocks, count in dense_cases],
        "programs": [peer_row(each, count, runs)
                     for count in ((4,) if args.quick else (4, 16))
                     for each in names],
        "plans": [plan_row(each, "layer-wise", count)
                  for each, count in (("vgg16", 4), ("alexnet", 16), ("vgg16", 16))
                  if count == 4 or not args.quick],
    }
    if args.json:
        print(json.dumps(data))
    else:
        show_all(data)


if __name__ == "__main__":
    main()
