"""How far the chosen size of gradient buckets is from the best buckets of any boundaries.

    python bench/buckets.py [--networks lenet5,vgg16] [--ranks 16,1024]

Every row is a plan (`data`) in predicted time, as a ratio to the best boundaries found: the better
of 1 MiB and 25 MiB, the best power of two, and the size that `hpcpar plan` takes. Up to 12 layers,
all boundaries are tried; above, local search from the chosen size sets or removes one boundary at a
time. The exit status is 1 where the chosen size is over 2% slower.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.price_family import price_family
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.buckets import closes
from hpcpar.search.bucket_sizes import fastest_sizes, layers_in_buckets, times

#: Network, machine and samples of a rank.
CASES = (("lenet5", "cori-knl", 16), ("lenet5", "local", 8), ("alexnet", "abci-v100", 32),
         ("alexnet", "k80x16", 32), ("vgg16", "abci-v100", 32), ("vgg16", "p100x4x4", 16),
         ("cosmoflow", "abci-v100", 1), ("resnet50", "abci-v100", 32), ("resnet50", "cori-knl", 8),
         ("inception_v3", "k20x8", 16))
RANKS = (4, 16, 64, 256, 1024)
#: Layers up to which all boundaries are tried.
ALL = 12
#: The slowest that passes.
LIMIT = 1.02


def ratios(name: str, machine_name: str, per_rank: int, ranks: int) -> tuple[float, ...]:
    """Seconds of the best boundaries; and ratios to them of the former two sizes, of powers of two,
    and of the chosen size.
    """
    net, machine = network(name), files.load(machine_name)
    plan = make_plan(NetworkSpec(name, net.image_shape, net.classes), "data", ranks,
                     per_rank * ranks, network=net, machine=machine)
    costs = price_family(net, plan, machine)
    layers = layers_in_buckets(net, plan)

    def least_s(ends: NDArray[np.bool_]) -> tuple[float, int]:
        seconds = times(net, plan, machine, costs, ends)[0][:, 0]
        return float(seconds.min()), int(seconds.argmin())

    def sized(sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.array(closes(net, plan, layers, sizes))

    size, (chosen_s,) = fastest_sizes(net, plan, machine, costs)
    former_s, _ = least_s(sized(np.array([1 << 20, 25 << 20])))
    powers_s, _ = least_s(sized(2 ** np.arange(12, 40)))
    if len(layers) <= ALL:
        inner = np.array(list(itertools.product((False, True), repeat=len(layers) - 1))).T
        best_s, _ = least_s(np.vstack([inner, np.ones((1, inner.shape[1]), np.bool_)]))
    else:
        ends, best_s = sized(size)[:, 0], float(chosen_s)
        while True:
            changed = ends[:, None] ^ np.eye(len(layers), len(layers) - 1, dtype=np.bool_)
            seconds, way = least_s(changed)
            if seconds >= best_s:
                break
            ends, best_s = changed[:, way], seconds
    return best_s, former_s / best_s, powers_s / best_s, float(chosen_s) / best_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--networks", default=",".join(dict.fromkeys(case[0] for case in CASES)))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    args = parser.parse_args()
    worst = 1.0
    print(f"{'network':13} {'machine':10} {'ranks':>5} {'best':>10}  1|25 MiB  2^k     chosen")
    for name, machine, per_rank in CASES:
        for ranks in map(int, args.ranks.split(",")):
            if name in args.networks.split(","):
                best_s, *others = ratios(name, machine, per_rank, ranks)
                worst = max(worst, others[-1])
                told = "  ".join(f"{ratio:6.3f}" for ratio in others)
                print(f"{name:13} {machine:10} {ranks:5} {best_s * 1e3:8.3f}ms  {told}")
    print(f"chosen: at most {worst:.4f} times the best boundaries (limit {LIMIT})")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
