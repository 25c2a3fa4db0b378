"""The host's work in an iteration on a GPU, without a GPU.

    python bench/gpu_host.py [--networks resnet50,alexnet] [--batch 2] [--replayed]

Every call of CuPy, cuDNN and CUDA returns at once (`bench/null_device.py`), so the time is the
project's own Python, plus the packing of arguments. It leaves out what CuPy and the driver add on
a card (`bench/gpu_session.py --parts costs`). Images lie on the device, as after a prefetch, and
results are read one iteration late, as in a training run. `--replayed` also measures iterations as
graphs. Times are the processor's, so other processes matter little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import null_device

#: Iterations before the first that is counted: they build what later iterations use.
WARM_UP = 3


def measure(name: str, batch: int, iterations: int, noted: bool,
            replayed: bool = False) -> dict[str, Any]:
    """Counts of one iteration of a network, and the fastest one's host milliseconds. The wait for
    an iteration's result is not counted.
    """
    from hpcpar.comm.communicator import Communicator
    from hpcpar.comm.world import world
    from hpcpar.kernels import backend
    from hpcpar.network.builtin import network
    from hpcpar.plan.plan import NetworkSpec, make_plan
    from hpcpar.runtime.executor import Executor
    from hpcpar.runtime.flight import Flight
    from hpcpar.runtime.nonfinite import NonfiniteDetector
    from hpcpar.schedule.lower import lower

    net = network(name)
    plan = make_plan(NetworkSpec(name, net.image_shape, net.classes), "data", 1, batch)
    gpu = backend("gpu")
    executor = Executor(net, plan, lower(net, plan, lambda step: ("ring", 1)),
                        Communicator(world(), gpu), gpu, 0, graphs=replayed)
    NonfiniteDetector(executor)
    images = gpu.zeros((batch, *net.image_shape), np.float32)
    labels = np.arange(batch)
    times_s, flights = [], deque[Flight]()
    for i in range(WARM_UP + iterations):
        if i == WARM_UP:
            null_device.counts.clear()
        begin_s = time.process_time()
        before = null_device.counts["waits"]
        flights.append(executor.begin(images, labels, i, 0.001, 0.9, 0.0, noted=noted))
        waits = null_device.counts["waits"] - before
        if i:
            flights.popleft().result()
        times_s.append(time.process_time() - begin_s)
    found: Counter[str] = null_device.counts
    each = {kind: found[kind] / iterations for kind in (
        *null_device.LAUNCHES, "graphs", "copies", "events")}
    launches = sum(each[kind] for kind in null_device.LAUNCHES)
    if executor.replays is not None and executor.replays.refused:
        raise SystemExit("; ".join(executor.replays.cautions))
    return {"network": name, "batch": batch, "replayed": replayed,
            "host ms": 1e3 * min(times_s[WARM_UP:]), "launches": launches, **each, "waits": waits}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--networks", default="resnet50,alexnet")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--noted", action="store_true", help="note the times of all steps")
    parser.add_argument("--replayed", action="store_true", help="also measure iterations as graphs")
    parser.add_argument("--json", action="store_true", help="one JSON object per network")
    options = parser.parse_args()
    null_device.install()
    for name in options.networks.split(","):
        for replayed in (False, True)[:1 + options.replayed]:
            row = measure(name, options.batch, options.iterations, options.noted, replayed)
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            how = ", replayed" if replayed else ""
            print(f"{name}, {options.batch} images{how}:", flush=True)
            for what, value in list(row.items())[3:]:
                print(f"  {what:18}{value:10.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
