"""The layer-wise search: how long it takes, an integer program beside it, and its plans beside
those that OptCNN and DeePa published.

Run: ``python bench/search.py`` (minutes; ``--quick`` for less). One core. Times of searches are
medians with the tables included, beside the first call of a process of its own, which works out the
network too; the limits are those that the project holds itself to. The published times are on other
machines, and of tables measured on the devices. The integer program gets the same tables (scipy's
HiGHS): a binary variable for each configuration of a layer, a continuous one for each pair of
configurations at an edge, whose sums are the binaries.

Plans stand beside the published ones as the search finds them; as it finds them in the papers'
space, without cut reductions (k), without anything computed twice (x) and in one placement; and as
it finds them there under the papers' own costs: parameter servers that r replicas send r times the
weights, and transfers whose flows go one after the other (OptCNN, section 5.1).
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from bench.networks import deep, dense  # noqa: E402
from bench.papers import layerwise as published  # noqa: E402
from hpcpar.cost.price_plan import price  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.papers import optcnn  # noqa: E402
from hpcpar.plan.config import Config  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.plan.strategies import Configs  # noqa: E402
from hpcpar.report.tables import amount, show  # noqa: E402
from hpcpar.search import layerwise  # noqa: E402
from hpcpar.search.eliminate import solve  # noqa: E402
from hpcpar.search.layerwise import Search  # noqa: E402
from hpcpar.search.space import FIELDS, Space  # noqa: E402
from hpcpar.search.tables import Table, Tables, configured  # noqa: E402

IMAGES = published.IMAGES
#: (network, ranks) -> seconds that OptCNN (4) and DeePa (16) published, and those that the project
#: allows itself.
TIMES = {
    ("alexnet", 4): (0.02, 0.01), ("vgg16", 4): (0.1, 0.02), ("inception_v3", 4): (0.4, 0.1),
    ("alexnet", 16): (0.7, 0.03), ("vgg16", 16): (1.1, 0.06), ("inception_v3", 16): (4.8, 0.3),
}
#: Seconds that ResNet-152 on 1024 ranks may take.
LARGE_S = 10.0
#: Processes whose first search is timed.
PROCESSES = 5
#: Most seconds and continuous variables of an integer program.
PROGRAM_S, PROGRAM_SIZE = 60.0, 400_000
#: Machines of the published plans: OptCNN's on 4 GPUs, DeePa's on 16.
PRESET = {4: "p100x4x4", 16: "k80x16"}


# -- time ------------------------------------------------------------------------------------------
def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = action()
    return time.perf_counter() - begin, found


def cpu_timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that passed, and seconds of the processor: what is left of them where others share
    the machine.
    """
    begin = time.process_time()
    passed, _ = timed(action)
    return passed, time.process_time() - begin


def median_s(action: Callable[[], Any], runs: int) -> float:
    return statistics.median(timed(action)[0] for _ in range(runs))


def spec_of(name: str) -> NetworkSpec:
    """The papers' AlexNet, VGG-16 and Inception-v3; others are the built-in ones."""
    return published.spec(name) if name in published.NETWORKS else NetworkSpec(name, (3, 224, 224), 1000)


def search(net: Network, spec: NetworkSpec, ranks: int, machine: Machine) -> Search:
    return Search(net, spec, ranks, IMAGES * ranks, machine)


def searches(name: str, ranks: int, machine: str) -> Callable[[], Any]:
    """A search, to be repeated: the first finds a network that the process does not know."""
    spec, loaded = spec_of(name), files.load(machine)
    net = spec.build()
    return lambda: search(net, spec, ranks, loaded).best()


def of_a_new_network_s(name: str, ranks: int, machine: str, runs: int) -> float:
    """Median seconds of searches that find Python warm and a network that the process does not
    know.
    """
    spec, loaded = spec_of(name), files.load(machine)

    def once() -> float:
        net = spec.build()
        return timed(lambda: search(net, spec, ranks, loaded).best())[0]

    return statistics.median(once() for _ in range(runs))


def first_of_a_process_s(name: str, ranks: int, machine: str) -> float:
    """Median seconds of the first search of a process, which works out the network too and finds
    Python cold; imports are not counted.
    """
    command = [sys.executable, __file__, "--first", name, str(ranks), machine]
    return statistics.median(float(subprocess.run(command, check=True, capture_output=True).stdout)
                             for _ in range(PROCESSES))


def search_row(name: str, ranks: int, machine: str, runs: int) -> dict[str, Any]:
    """One search, tables included: the first call of a process, of a new network, and the median of
    further ones.
    """
    once = searches(name, ranks, machine)
    own_s, found = timed(once)
    first_s = first_of_a_process_s(name, ranks, machine) if runs else own_s
    new_s = of_a_new_network_s(name, ranks, machine, runs) if runs else own_s
    times = [cpu_timed(once) for _ in range(runs)]
    median, cpu = (statistics.median(t for t, _ in times),
                   min(t for _, t in times)) if times else (first_s, None)
    theirs, limit = TIMES.get((name, ranks), (None, LARGE_S))
    return {"network": name, "ranks": ranks, "machine": machine, "median_s": median, "cpu_s": cpu, "new_s": new_s, "first_s": first_s,
            "search_s": found.search_s, "published_s": theirs, "limit_s": limit, "times_the_limit": median / limit,
            "configurations": found.configurations, "kept": found.kept, "K": found.eliminations.kept,
            "edge_eliminations": found.eliminations.edges,
            "objective_s": found.objective_s, "exact": found.exact}


# -- curves ----------------------------------------------------------------------------------------
def by_ranks(most: int, runs: int) -> list[dict[str, Any]]:
    """Seconds of ResNet-50's search over numbers of ranks."""
    return [search_row("resnet50", 2**i, "abci-v100", runs) for i in range(1, 11) if 2**i <= most]


def by_layers(counts: tuple[int, ...], runs: int) -> list[dict[str, Any]]:
    """Seconds over the depth of a chain, on 16 ranks."""
    out, machine = [], files.load("p100x4x4")
    for count in counts:
        net = deep(count)
        spec = NetworkSpec(net.name, net.image_shape, net.classes)
        first_s, found = timed(lambda net=net, spec=spec: search(net, spec, 16, machine).best())  # type: ignore[misc]
        median = median_s(lambda net=net, spec=spec: search(net, spec, 16, machine).best(), runs)  # type: ignore[misc]
        out.append({"convolutions": count, "layers": len(net.layers), "median_s": median, "first_s": first_s, "search_s": found.search_s,
                    "configurations": found.configurations, "kept": found.kept})
    return out


# -- entangled graphs ------------------------------------------------------------------------------
def entangled_row(blocks: tuple[int, ...], ranks: int) -> dict[str, Any]:
    """A network that no elimination can plan: seconds, and how far the plan may be above the
    optimum.
    """
    net = dense(blocks)
    spec, machine = NetworkSpec(net.name, net.image_shape, net.classes), files.load("p100x4x4")
    first_s, found = timed(lambda: search(net, spec, ranks, machine).best())
    return {"blocks": list(blocks), "layers": len(net.layers), "ranks": ranks, "K": found.eliminations.kept, "first_s": first_s,
            "search_s": found.search_s, "objective_s": found.objective_s, "above": found.objective_s / found.bound_s - 1}


# -- the integer program ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Program:
    """A search problem as an integer program: minimise costs x under sums of variables."""

    costs: Any
    rows: Any
    sums: Any
    integral: Any
    starts: list[int]


def program(nodes: list[Any], edges: dict[tuple[int, int], Any]) -> Program:
    """One-hot binaries for every node; for every edge, continuous pairs whose marginals are the
    binaries of both ends.
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    starts = [int(n) for n in np.cumsum([0, *map(len, nodes)])]
    costs, row, column, value = list(nodes), [], [], []
    sums: list[Any] = [np.ones(len(nodes))]
    for i, t in enumerate(nodes):
        row.append(np.full(len(t), i))
        column.append(starts[i] + np.arange(len(t)))
        value.append(np.ones(len(t)))
    lines, at = len(nodes), starts[-1]
    for (a, b), t in edges.items():
        places = at + np.arange(t.size).reshape(t.shape)
        for end, axis in ((a, 1), (b, 0)):
            count = t.shape[1 - axis]
            ends = np.arange(count)
            row += [np.repeat(lines + ends, t.shape[axis]), lines + ends]
            column += [(places if axis == 1 else places.T).ravel(), starts[end] + ends]
            value += [np.ones(t.size), -np.ones(count)]
            sums.append(np.zeros(count))
            lines += count
        costs.append(t.ravel())
        at += t.size
    rows = coo_array((np.concatenate(value), (np.concatenate(row), np.concatenate(column))),
                     shape=(lines, at)).tocsr()
    return Program(np.concatenate(costs), rows, np.concatenate(sums),
                   (np.arange(at) < starts[-1]).astype(int), starts)


def solve_program(p: Program, limit_s: float) -> list[int] | None:
    """The chosen configuration of every node; None where the time did not suffice."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

    scale = 1 / np.abs(p.costs).max()
    found = milp(p.costs * scale, integrality=p.integral, bounds=Bounds(0, 1), constraints=LinearConstraint(p.rows, p.sums, p.sums),
                 options={"time_limit": limit_s, "mip_rel_gap": 1e-8})
    if found.status != 0:
        return None
    return [int(np.argmax(found.x[a:b])) for a, b in zip(p.starts, p.starts[1:], strict=False)]


def peer_row(name: str, ranks: int, runs: int) -> dict[str, Any]:
    """Elimination and the integer program on the same tables."""
    tables = search(published.network(name), spec_of(name), ranks, files.load("p100x4x4")).tables
    nodes, edges = [t.seconds for t in tables.nodes], {pair: t.seconds
                                                       for pair, t in tables.edges.items()}
    ours_s, (objective, _) = median_s(lambda: solve(nodes, edges), runs), solve(nodes, edges)
    row: dict[str, Any] = {
        "network": name, "ranks": ranks, "ours_s": ours_s, "objective_s": objective, "configurations": sum(map(len, nodes)),
        "pairs": sum(t.size for t in edges.values()), "program_s": None, "ratio": None, "difference": None,
    }
    if row["pairs"] > PROGRAM_SIZE:
        return row
    p = program(nodes, edges)
    program_s, chosen = timed(lambda: solve_program(p, PROGRAM_S))
    row["program_s"] = program_s
    if chosen is not None:
        row["ratio"], row["difference"] = program_s / ours_s, abs(tables.price(chosen) / objective - 1)
    return row


# -- published plans -------------------------------------------------------------------------------
def groups(net: Network, plans: list[Configs]) -> list[tuple[str, list[str]]]:
    """Runs of layers over which none of some plans changes, and each plan's configuration."""
    out: list[tuple[str, str, list[str]]] = []
    for layer in net.layers[1:]:
        texts = [brief(plan[layer.name]) for plan in plans]
        if out and out[-1][2] == texts:
            out[-1] = (out[-1][0], layer.name, texts)
        else:
            out.append((layer.name, layer.name, texts))
    return [(a if a == b else f"{a} ... {b}", texts) for a, b, texts in out]


def brief(config: Config) -> str:
    """As {n=4}; one rank is {1}."""
    return "{1}" if config.ranks == 1 else str(config)


def of_papers(found: Search) -> list[Any]:
    """Which configurations of each unit are in the papers' space."""
    k, copies = FIELDS.index("k"), FIELDS.index("replicas")
    return [(u.space.degrees[:, k] == 1) & (u.space.degrees[:, copies] == 1) & ~u.space.outer
            for u in found.units]


def degrees(space: Space) -> list[optcnn.Configuration]:
    return [optcnn.Configuration(**{a: int(row[FIELDS.index(a)]) for a in "nchwd"})
            for row in space.degrees]


def papers_costs(found: Search) -> Tables:
    """The papers' tables: tC of the priced schedule, tS and tX by their closed forms at the rate of
    the innermost level.
    """
    net, machine, batch = found.network, found.machine, found.plan.batch
    rate = 1 / machine.levels[0].beta_s_per_byte
    nodes = []
    for unit, t in zip(found.units, found.tables.nodes, strict=True):
        head = unit.layers[0]
        weights = 4 * head.parameters(net.input_shape(head)) if head.has_weights else 0
        nodes.append(Table(t.seconds - t.hideable + [optcnn.ts_s(weights, c, rate)
                                                     for c in degrees(unit.space)], t.bytes, 0.0))
    out, known = Tables(found.units, nodes), dict[Any, Table]()
    for a, b, layer, which in found.links:
        there, here = found.units[a].space, found.units[b].space
        e = optcnn.edge(net, layer, batch, 4, which)
        key = (e.axes, e.extents, tuple(e.reader_extents.items()), e.relations, id(there), id(here))
        if not net.by_name[layer.inputs[which]].inputs:  # images are wherever they are needed
            out.edges[a, b] = Table(np.zeros((len(there), len(here))), 0.0, 0.0)
            continue
        if key not in known:
            known[key] = Table(np.array([[optcnn.tx_s(e, x, y, rate) for y in degrees(here)]
                                         for x in degrees(there)]), 0.0, 0.0)
        out.edges[a, b] = known[key]
    return out


def optimum(tables: Tables, allowed: list[Any]) -> list[int]:
    nodes = [np.where(ok, t.seconds, np.inf) for t, ok in zip(tables.nodes, allowed, strict=True)]
    return solve(nodes, {pair: t.seconds for pair, t in tables.edges.items()})[1]


def plan_row(name: str, strategy: str, ranks: int) -> dict[str, Any]:
    """Our plans and the published one, priced without overlap: the sum of all steps, which is the
    papers' objective.
    """
    net, spec, machine = published.network(name), published.spec(name), PRESET[ranks]
    # whole tables: what is pruned for one optimum may be part of another
    few, layerwise.FEW = layerwise.FEW, sys.maxsize
    try:
        found = Search(net, spec, ranks, IMAGES * ranks, files.load(machine), overlap="none")
    finally:
        layerwise.FEW = few
    allowed, costs, theirs = of_papers(found), papers_costs(found), published.configurations(name, strategy, ranks)
    places = {"papers_space": optimum(found.tables, allowed),
              "papers_costs": optimum(costs, allowed)}
    plans = {"ours": found.best().plan.configs} | {key: configured(found.units, at)
                                                   for key, at in places.items()} | {
        "published": theirs}
    images, reader = net.layers[0].name, plans["papers_costs"][net.layers[1].name]
    # wherever they are needed
    plans["papers_costs"][images] = replace(reader, c=1, replicas=reader.c)
    out: dict[str, Any] = {"network": name, "plan": strategy, "ranks": ranks, "machine": machine}
    for key, configs in plans.items():
        p = price(net, replace(found.plan, configs=configs), files.load(machine))
        out[key] = {"sum_s": p.compute_s + p.communication_s, "compute_s": p.compute_s,
                    "sent_bytes": p.communication_bytes}
        at = [u.space.find(configs[u.name]) for u in found.units]
        out[key]["papers_s"] = None if None in at or key == "ours" else costs.price([int(i) for i in at if i is not None])
    out["ratios"] = {key: out[key]["sum_s"] / out["published"]["sum_s"]
                     for key in ("ours", "papers_space")}
    out["ratios"]["papers_costs"] = out["papers_costs"]["papers_s"] / out["published"]["papers_s"]
    out["groups"] = [{"layers": layers, **dict(zip(plans, texts, strict=True))}
                     for layers, texts in groups(net, list(plans.values()))]
    return out


# -- output ----------------------------------------------------------------------------------------
def seconds(value: float | None) -> str:
    """As 12.3 ms."""
    return "-" if value is None else f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def show_all(data: dict[str, Any]) -> None:
    show("a search, tables included, on one core (published: OptCNN's on 4 GPUs, DeePa's on 16)",
         ("network", "ranks", "median", "least CPU", "new network", "first call", "solving alone", "published", "limit", "times the limit",
          "configurations", "kept"),
         [(r["network"], r["ranks"], seconds(r["median_s"]), seconds(r["cpu_s"]), seconds(r["new_s"]), seconds(r["first_s"]),
           seconds(r["search_s"]),
           seconds(r["published_s"]), seconds(r["limit_s"]), f"{r['times_the_limit']:.2f}", r["configurations"], r["kept"])
          for r in data["searches"]], left=1)
    show("resnet50 on abci-v100 over numbers of ranks", ("ranks", "median", "first call", "solving alone", "configurations", "kept"),
         [(r["ranks"], seconds(r["median_s"]), seconds(r["first_s"]), seconds(r["search_s"]), r["configurations"], r["kept"])
          for r in data["ranks"]], left=0)
    show("chains of unlike convolutions on 16 ranks", ("convolutions", "layers", "median", "first call", "solving alone", "configurations",
                                                       "kept"),
         [(r["convolutions"], r["layers"], seconds(r["median_s"]), seconds(r["first_s"]), seconds(r["search_s"]), r["configurations"],
           r["kept"]) for r in data["layers"]], left=0)
    show("DenseNet's blocks", ("layers of a block", "layers", "ranks", "K", "first call", "solving alone", "above the optimum, at most"),
         [(", ".join(map(str, r["blocks"])), r["layers"], r["ranks"], r["K"], seconds(r["first_s"]), seconds(r["search_s"]),
           f"{r['above']:.1e}") for r in data["entangled"]], left=1)
    show(f"elimination and an integer program (HiGHS, at most {PROGRAM_S:g} s) on the same tables",
         ("network", "ranks", "configurations", "pairs", "elimination", "integer program", "ratio", "optima differ by"),
         [(r["network"], r["ranks"], r["configurations"], r["pairs"], seconds(r["ours_s"]), seconds(r["program_s"]),
           "-" if r["ratio"] is None else f"{r['ratio']:.0f}", "-" if r["difference"] is None else f"{r['difference']:.1e}")
          for r in data["programs"]], left=1)
    for r in data["plans"]:
        show(f"{r['network']} on {r['ranks']} ranks of {r['machine']}; over the published plan: {r['ratios']['ours']:.3f}, in the papers' "
             f"space {r['ratios']['papers_space']:.3f}, under the papers' costs {r['ratios']['papers_costs']:.3f}",
             ("layers", "ours", "papers' space", "papers' costs", "published"),
             [(g["layers"], *(g[key] for key in PLANS)) for g in r["groups"]]
             + [(what, *(form(r[key][field]) for key in PLANS)) for what, field, form in ROWS], left=5)


PLANS = ("ours", "papers_space", "papers_costs", "published")
#: The last rows of a table of plans.
ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("sum of all steps", "sum_s", seconds), ("of it computing", "compute_s", seconds), ("sent by a rank", "sent_bytes", amount),
    ("under the papers' costs", "papers_s", seconds),
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
    large: list[tuple[str, int, str, int]] = [] if args.quick else [("resnet152", 1024, "abci-v100", 0)]
    cases = [(each, count, "p100x4x4", runs) for count in (4, 16) for each in names]
    data: dict[str, Any] = {
        "searches": [search_row(*case) for case in [*cases, *large]],
        "ranks": by_ranks(8 if args.quick else 1024, 0 if args.quick else 1),
        "layers": by_layers((4, 8) if args.quick else (4, 8, 16, 32, 64), min(runs, 3)),
        "entangled": [entangled_row(blocks, count) for blocks, count in
                      ([((6, 12), 4)] if args.quick else [((6, 12), 4), ((6, 12, 24, 16), 4), ((6, 12, 24, 16), 16)])],
        "programs": [peer_row(each, count, runs) for count in ((4,) if args.quick else (4, 16)) for each in names],
        "plans": [plan_row(each, "layer-wise", count) for each, count in (("vgg16", 4), ("alexnet", 16), ("vgg16", 16))
                  if count == 4 or not args.quick],
    }
    if args.json:
        print(json.dumps(data))
    else:
        show_all(data)


if __name__ == "__main__":
    main()
