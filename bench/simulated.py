"""Where the closed form and the simulation part, and which strategy tolerates noise.

    python bench/simulated.py [--networks resnet50,...] [--ranks 64,512,4096] [--jitter 0.05]

Weak and strong scaling on `abci-v100`: predicted time of an iteration; simulated over predicted
without noise (uneven parts, edges, stages, contention); with jitter over without (whom waiting for
the slowest costs most), and with one node 1.3 times slower over without. Every row is one plan.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from hpcpar.cost.price_family import price_family
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.report.tables import seconds, show
from hpcpar.simulation.noise import Noise, slow_ranks
from hpcpar.simulation.simulate import Simulator

MACHINE = "abci-v100"
#: Samples of a rank in weak scaling; of all ranks in strong scaling.
CASES = {"resnet50": (32, 8192), "vgg16": (32, 8192), "cosmoflow": (1, 1024)}
#: With groups of four ranks.
STRATEGIES = ("data", "df:{of}x4", "ds:{of}x4", "grid-fc:4x{of}", "pipeline:4x{of}", "spatial")
REPEATS = 20


def row(name: str, strategy: str, ranks: int, batch: int, jitter: float) -> tuple[str, ...]:
    """One plan, with the seconds that its simulations took; dashes where it cannot run."""
    machine, net = files.load(MACHINE), network(name)
    spec = NetworkSpec(name, net.image_shape, net.classes)
    named = strategy.format(of=ranks // 4)
    head = (name, str(ranks), str(batch), named)
    try:
        plan = make_plan(spec, named, ranks, batch, network=net, machine=machine)
        begin, simulator = time.perf_counter(), Simulator(net, plan, machine)
    except InputError:
        return ()
    predicted_s = float(price_family(net, plan, machine).timeline.total_s)
    quiet = simulator.play()
    noisy = simulator.play(Noise(jitter), REPEATS)
    slow = simulator.play(Noise(slow=slow_ranks(machine, ranks, {"node3": 1.3})))
    p95_s = float(np.percentile(noisy.iteration_s, 95))
    return (*head, seconds(predicted_s), f"{quiet.mean_s / predicted_s:.4f}",
            f"{noisy.mean_s / quiet.mean_s:.4f}", f"{p95_s / quiet.mean_s:.4f}",
            f"{slow.mean_s / quiet.mean_s:.4f}", f"{time.perf_counter() - begin:.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--networks", default=",".join(CASES))
    parser.add_argument("--ranks", default="64,512,4096")
    parser.add_argument("--jitter", type=float, default=0.05)
    options = parser.parse_args()
    for kind in ("weak", "strong"):
        rows = []
        for name in options.networks.split(","):
            for ranks in map(int, options.ranks.split(",")):
                each, whole = CASES[name]
                batch = each * ranks if kind == "weak" else whole
                rows += [row(name, strategy, ranks, batch, options.jitter)
                         for strategy in STRATEGIES]
        show(f"{kind} scaling on {MACHINE}",
             ("network", "ranks", "batch", "strategy", "predicted", "simulated / predicted",
              f"jitter {options.jitter:g}: mean", "95th percentile", "a slow node",
              "simulated in (s)"), [r for r in rows if r], left=4, wide=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
