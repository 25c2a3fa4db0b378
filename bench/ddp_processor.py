"""Processor seconds of an iteration beside PyTorch's, without messages, on a shared machine.

Run: ``python bench/ddp_processor.py`` (needs PyTorch; several minutes). One process with one thread
trains a rank's share of `bench/ddp.py`'s batches, in turn with NumPy's kernels, with `auto` as
measured just before, and with PyTorch's modules: as they are, channels-last, and compiled. Other
processes lengthen these times less than an iteration's. Freed memory is kept for all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ddp import BATCHES, DECAY, MOMENTUM, RATE, several, twin
from hpcpar.api.sources import network_of
from hpcpar.calibrate import conv_probe
from hpcpar.calibrate.compute_probe import silent_iteration
from hpcpar.comm.world import world
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.kernels import backend
from hpcpar.machine import files
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.report.tables import seconds, show


def theirs(network: Network, batch: int, last: bool, compiled: bool) -> Callable[[], object]:
    """An iteration of PyTorch's."""
    import torch

    torch.set_num_threads(1)
    form = torch.channels_last if last else torch.contiguous_format
    module = twin(network)
    for value in module.parameters():
        if last and value.dim() == 4:
            value.data = value.data.contiguous(memory_format=form)
    update = torch.optim.SGD(module.parameters(), RATE, MOMENTUM, weight_decay=DECAY, fused=True)
    model: Any = torch.compile(torch.fx.symbolic_trace(module)) if compiled else module
    images = torch.randn(batch, *network.image_shape).contiguous(memory_format=form)
    labels = torch.randint(network.classes, (batch,))

    def iterate() -> None:
        update.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        update.step()

    return iterate


def measure(name: str, rounds: int, compiled: bool) -> list[str]:
    """A row of the table."""
    w, batch = world(), BATCHES[name] // 2
    spec, network = network_of(name)
    plan = plans.make_plan(spec, "data", 1, batch, machine=files.load("local"))
    schedule = schedule_for(network, plan)
    choice = conv_probe.fastest(conv_probe.numpy_over_others(w, [plan]))
    contenders: dict[str, Callable[[], object]] = {
        kernels: silent_iteration(w, network, plan, schedule, backend(
            "cpu", kernels=kernels, calibrated=choice))[0] for kernels in ("numpy", "auto")}
    for last in (False, True):
        contenders[f"theirs {last}"] = theirs(network, batch, last, False)
        if compiled:
            contenders[f"theirs compiled {last}"] = theirs(network, batch, last, True)
    took_s: dict[str, list[float]] = {key: [] for key in contenders}
    for number in range(1 + rounds):
        for key, iterate in contenders.items():
            begin_s = time.process_time()
            iterate()
            if number:
                took_s[key].append(time.process_time() - begin_s)
    medians_s = {key: statistics.median(values) for key, values in took_s.items()}
    best_s = min(s for key, s in medians_s.items() if key.startswith("theirs"))
    ratio = f"{best_s / medians_s['auto']:.2f}"
    return [name, str(batch), *map(seconds, medians_s.values()), ratio]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--networks", type=several, default=[*BATCHES])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    compiled = not args.no_compile
    theirs_names = [f"{form}{', compiled' * each}" for form in ("PyTorch", "channels-last")
                    for each in range(1 + compiled)]
    show("processor seconds of an iteration, one process", (
        "network", "batch", "NumPy", "auto", *theirs_names, "fastest PyTorch over auto"),
        map(partial(measure, rounds=args.rounds, compiled=compiled), args.networks))


if __name__ == "__main__":
    main()
