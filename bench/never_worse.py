"""No plan that the command line can name is predicted faster than the choice of `auto`.

Run: ``python bench/never_worse.py`` (minutes; ``--cases`` and ``--draws`` for more or less). Cases
(network, machine, ranks, batch) are drawn from a seed, and for each of them plans: any strategy and
placement, with any overlap, buckets, micro-batches, order, recomputation and synchronization.
Options that change the training stay: batch, element type, statistics of batch normalization,
optimizer. A plan that fits and is predicted faster than the choice of ``plan`` by more than 0.1% is
a counter-example: its command line is printed, without the options that it does not need, and the
bench ends with status 1.

``--plain-sum``: the layer-wise search is never worse than a named strategy of its space under the
plain sum (OptCNN, Eq 1), for every network, machine and number of ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from hpcpar.api.plan import plan  # noqa: E402
from hpcpar.api.predict import predict  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.network.builtin import built_in  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.plan.strategies import GATHERS, entry_of  # noqa: E402
from hpcpar.plan.strategy import STRATEGIES, grid_sizes  # noqa: E402
from hpcpar.prediction.prediction import Prediction  # noqa: E402
from hpcpar.report.tables import say  # noqa: E402
from hpcpar.search import auto  # noqa: E402
from hpcpar.search.candidates import priced  # noqa: E402
from hpcpar.search.layerwise import plan_layerwise  # noqa: E402
from hpcpar.search.searches import SEARCHES  # noqa: E402

#: Network -> samples per rank.
NETWORKS = {"lenet5": 64, "mlp": 64, "alexnet": 32, "alexnet-owt": 32, "vgg16": 32, "resnet50": 32,
            "resnet152": 32, "inception_v3": 32, "mobilenet_v2": 32, "unet": 4, "cosmoflow": 4}
#: Networks of the counter-examples: all kinds, none twice.
KINDS = ("lenet5", "alexnet", "vgg16", "resnet50", "inception_v3", "unet", "mobilenet_v2",
         "cosmoflow")
RANKS = (2, 4, 8, 16, 64, 1024)
#: Numbers of ranks of the counter-examples.
MORE_RANKS = (2, 3, 4, 6, 8, 12, 16, 32, 48, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096)
#: Options of a plan that leave its training as it is, and the values that are drawn.
OPTIONS: dict[str, tuple[object, ...]] = {
    "gather": GATHERS,
    "overlap": ("none", "gradient", "full"),
    "synchronization": ("allreduce", "sharded", "server"),
    "microbatches": (1, 2, 4, 8, 16, 32),
    "order": ("gpipe", "1f1b"),
    "bucket": (0, *(1 << i for i in range(16, 30, 2))),
    "recompute": (0, 2, 4, 8),
}
#: A choice may be slower by this factor than a plan that the bench finds.
TOLERANCE = 1.001


# -- counter-examples ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A problem that `plan` solves."""

    network: str
    machine: str
    ranks: int
    batch: int

    def words(self, options: dict[str, Any]) -> str:
        """The command line of a plan."""
        of_case = {"network": self.network, "machine": self.machine, "ranks": self.ranks,
                   "batch": self.batch}
        return " ".join(["hpcpar predict",
                         *(f"--{name} {value}" for name, value in (of_case | options).items())])

    def price(self, options: dict[str, Any]) -> Prediction | None:
        """The prediction of a plan; None where it cannot be run or does not fit."""
        try:
            found = predict(self.network, self.ranks, self.batch, self.machine, **options)
        except InputError:
            return None
        return found.predictions[0] if found.predictions[0].fits else None


def drawn_cases(count: int, seed: int, networks: list[str], ranks: list[int]) -> Iterator[Case]:
    """Problems, with a quarter of the usual samples of a rank, all, or four times as many."""
    draw = random.Random(seed)
    for _ in range(count):
        network, machine = draw.choice(networks), draw.choice(files.presets())
        count_ranks = draw.choice(ranks)
        share = NETWORKS[network] * draw.choice((0.25, 1, 4))
        yield Case(network, machine, count_ranks, max(1, int(share * count_ranks)))


def drawn_plan(draw: random.Random, ranks: int, names: Sequence[str]) -> dict[str, Any]:
    """Options of the command line: a strategy, and each of the `names` with one half."""
    # schemes b and c of one weird trick update weights more often: another training run
    others = ("owt-b", "owt-c", *SEARCHES)
    name = draw.choice([*(name for name in STRATEGIES if name not in others),
                        "layerwise"])
    grid = ""
    if STRATEGIES[name].numbers:
        grid = ":{}x{}".format(*draw.choice(grid_sizes(ranks)))
    placement = draw.choice(["", "/outer"]) if grid and name != "pipeline" else ""
    return {"strategy": name + grid + placement} | {
        option: draw.choice(OPTIONS[option]) for option in names if draw.random() < 0.5}


def changed(draw: random.Random, options: dict[str, Any], ranks: int,
            names: Sequence[str]) -> dict[str, Any]:
    """A plan with another strategy, or with one option changed or left out."""
    name = draw.choice(["strategy", *names])
    if name == "strategy":
        return options | {"strategy": drawn_plan(draw, ranks, ())["strategy"]}
    others = {option: value for option, value in options.items() if option != name}
    return others if name in options and draw.random() < 0.5 else (
        others | {name: draw.choice(OPTIONS[name])})


def shortest(case: Case, options: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The options without those that a plan below `limit_s` can do without."""
    for name in OPTIONS:
        fewer = {option: value for option, value in options.items() if option != name}
        found = case.price(fewer) if name in options else None
        if found is not None and found.iteration_s < limit_s:
            options = fewer
    return options


def counter_example(case: Case, draws: int, seed: int,
                    names: Sequence[str] = tuple(OPTIONS)) -> tuple[float, str] | None:
    """A plan that is faster than the fastest that `auto` finds: how many times as fast, and its
    command line. (Of plans about equal to that one, `auto` chooses the simplest.)

    Half of the draws are new, the others change the fastest so far.
    """
    found_by_auto = plan(case.network, case.ranks, case.batch, case.machine)
    chosen = found_by_auto.prediction
    times_s = [c.iteration_s for c in found_by_auto.candidates if c.fits]
    fastest_s = min([*times_s, *([chosen.iteration_s] if chosen.fits else [])],
                    default=float("inf"))
    limit_s = fastest_s / TOLERANCE
    draw = random.Random(f"{seed} {case}")
    best_s, best = float("inf"), drawn_plan(draw, case.ranks, names)
    for _ in range(draws):
        if draw.random() < 0.5:
            options = drawn_plan(draw, case.ranks, names)
        else:
            options = changed(draw, best, case.ranks, names)
        found = case.price(options)
        if found is not None and found.iteration_s < best_s:
            best_s, best = found.iteration_s, options
    if best_s >= limit_s:
        return None
    return fastest_s / best_s, case.words(shortest(case, best, limit_s))


def counter_examples(cases: Iterator[Case], draws: int, seed: int, names: Sequence[str]) -> int:
    """Prints every counter-example as it is found; returns how many there are."""
    begin, found, number = time.perf_counter(), 0, 0
    for number, case in enumerate(cases, 1):
        example = counter_example(case, draws, seed, names)
        if example is not None:
            found += 1
            say(f"{example[0]:.4f} times as fast as auto: {example[1]}")
        elapsed_s = time.perf_counter() - begin
        say(f"{number} cases, {found} counter-examples, {elapsed_s:.0f} s: {case}")
    say(f"{number} cases of {draws} plans: {found} counter-examples")
    return found


# -- the plain sum ---------------------------------------------------------------------------------
def gain(name: str, samples: int, ranks: int, preset: str) -> float | None:
    """Iteration of the best named strategy over the search's; None where no named strategy fits."""
    machine, spec = files.load(preset), NetworkSpec.of(built_in(name))
    network = spec.build()
    found = plan_layerwise(auto.task(network, spec, ranks, samples * ranks, machine,
                                     overlap="none")).candidate
    names = [s for s in auto.strategies_to_try(network, ranks, machine) if not entry_of(s).apart]
    others = [c.iteration_s for c in priced(found.task, names) if c.parts <= samples * ranks
              and c.fits]
    if not others:
        return None
    return min(others) / found.iteration_s if found.fits else 0.0


def worse_sums(networks: list[str], all_ranks: list[int]) -> int:
    """Prints every case in which a named strategy has a lesser sum; returns how many there are."""
    begin, gains, worse = time.perf_counter(), [], 0
    for name in networks:
        for ranks in all_ranks:
            for preset in files.presets():
                ratio = gain(name, NETWORKS.get(name, 32), ranks, preset)
                if ratio is None:
                    continue
                gains.append(ratio)
                if ratio < 1 - 1e-9:
                    worse += 1
                    say(f"{name} on {ranks} ranks of {preset}: a named strategy is "
                        f"{1 / max(ratio, 1e-9):.3f} times as fast")
        elapsed_s = time.perf_counter() - begin
        say(f"{name}: {len(gains)} cases so far, {worse} worse, {elapsed_s:.0f} s")
    gains.sort()
    say(f"{len(gains)} cases, {worse} worse than a named strategy; times as fast as the best of "
        f"them: median {gains[len(gains) // 2]:.3f}, most {gains[-1]:.3f}")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", help="networks (default: one of each kind)")
    parser.add_argument("--ranks", help="numbers of ranks (default: up to 4096)")
    parser.add_argument("--cases", type=int, default=50, help="cases that are drawn (default 50)")
    parser.add_argument("--draws", type=int, default=40, help="plans of a case (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn cases (default 0)")
    parser.add_argument("--options", default=",".join(OPTIONS),
                        help="options that are drawn beside the strategy (default: all)")
    parser.add_argument("--plain-sum", action="store_true", help="check the layer-wise search")
    args = parser.parse_args()
    networks = args.networks.split(",") if args.networks else list(
        NETWORKS if args.plain_sum else KINDS)
    ranks = [int(count) for count in args.ranks.split(",")] if args.ranks else list(
        RANKS if args.plain_sum else MORE_RANKS)
    if args.plain_sum:
        return 1 if worse_sums(networks, ranks) else 0
    names = [name for name in args.options.split(",") if name]
    cases = drawn_cases(args.cases, args.seed, networks, ranks)
    return 1 if counter_examples(cases, args.draws, args.seed, names) else 0


if __name__ == "__main__":
    raise SystemExit(main())
