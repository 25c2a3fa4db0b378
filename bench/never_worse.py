"""The layer-wise search is never worse than a named strategy under the plain sum (OptCNN, Eq 1).

Run: ``python bench/never_worse.py`` (some minutes). Prints a line for every case in which a named
strategy of the search's space that fits is faster, and ends with status 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from hpcpar.machine import files  # noqa: E402
from hpcpar.network.builtin import defaults  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.plan.strategies import parse  # noqa: E402
from hpcpar.report.tables import say  # noqa: E402
from hpcpar.search import auto  # noqa: E402
from hpcpar.search.candidates import APART, priced  # noqa: E402

#: Network -> samples a rank.
NETWORKS = {"lenet5": 64, "mlp": 64, "alexnet": 32, "alexnet-owt": 32, "vgg16": 32, "resnet50": 32,
            "resnet152": 32, "inception_v3": 32, "cosmoflow": 4}
RANKS = (2, 4, 8, 16, 64, 1024)


def gain(name: str, samples: int, ranks: int, preset: str) -> float | None:
    """Iteration of the best named strategy over the search's; None where no named strategy fits."""
    machine, spec = files.load(preset), NetworkSpec(name, *defaults(name))
    network = spec.build()
    found, _ = auto.layerwise(network, spec, ranks, samples * ranks, machine, overlap="none")
    names = [s for s in auto.strategies_to_try(network, ranks, machine) if parse(s)[0] not in APART]
    others = [c.iteration_s for c in priced(found.task, names) if c.parts <= samples * ranks
              and c.fits]
    if not others:
        return None
    return min(others) / found.iteration_s if found.fits else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS),
                        help="networks (default: all built in)")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="numbers of ranks")
    args = parser.parse_args()
    begin, gains, worse = time.perf_counter(), [], 0
    for name in args.networks.split(","):
        for ranks in map(int, args.ranks.split(",")):
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
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
