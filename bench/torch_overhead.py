"""An iteration of AlexNet by `hpcpar.torch`, with torch's loss and SGD, beside the executor's own.

Run: ``mpiexec -n 2 python bench/torch_overhead.py --batch 16 --iterations 12 --strategy data``.
Both train the same module under the same plan on the same samples, an iteration of one and an
iteration of the other in turn. Prints the medians of the slowest rank, their ratio, and the times
of the parts.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import hpcpar.torch  # noqa: E402
from hpcpar.comm.communicator import Communicator  # noqa: E402
from hpcpar.comm.world import world  # noqa: E402
from hpcpar.cost.network.algorithm_choice import schedule_for  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.network import from_torch  # noqa: E402
from hpcpar.plan.boxes import local, whole_box  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.runtime.executor import Executor  # noqa: E402

SHAPE = (3, 227, 227)


def alexnet() -> nn.Module:
    """AlexNet on one tower, without dropout."""
    sizes = ((3, 64, 11, 4, 0, 1), (64, 192, 5, 1, 2, 1), (192, 384, 3, 1, 1, 0),
             (384, 256, 3, 1, 1, 0), (256, 256, 3, 1, 1, 1))
    parts: list[nn.Module] = []
    for inputs, outputs, kernel, stride, padding, pools in sizes:
        parts += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU()]
        parts += [nn.MaxPool2d(3, 2)] * pools
    parts += [nn.Flatten(), nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
              nn.Linear(4096, 1000)]
    return nn.Sequential(*parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--strategy", default="data")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks, module = world(), alexnet()
    model = hpcpar.torch.parallelize(module, SHAPE, args.batch, args.strategy,
                                     kernels="numpy")
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, weight_decay=5e-4,
                                fused=True)
    network = from_torch(module, SHAPE)
    plan = replace(model.plan, network=NetworkSpec.of(network))
    own = Executor(network, plan, schedule_for(network, plan),
                   Communicator(ranks, backend("cpu")), backend("cpu"), 0)
    seeded = torch.Generator().manual_seed(0)
    images = torch.randn(args.batch, *SHAPE, generator=seeded)
    labels = torch.randint(0, 1000, (args.batch,), generator=seeded)
    box = local(own.image_box, whole_box(SHAPE))
    pixels: Any = (own.image_rows, *box)
    part = np.ascontiguousarray(images.numpy()[pixels])

    def by_torch(step: int) -> None:
        begin = perf_counter()
        y = model(images)
        forward_s = perf_counter() - begin
        losses = functional.cross_entropy(y, model.local(labels), reduction="none")
        loss = hpcpar.torch.mean(losses, model)
        loss_s = perf_counter() - begin - forward_s
        model.backward(loss)
        backward_s = perf_counter() - begin - forward_s - loss_s
        optimizer.step()
        optimizer.zero_grad()
        parts.append((forward_s, loss_s, backward_s,
                      perf_counter() - begin - forward_s - loss_s - backward_s))

    def by_executor(step: int) -> None:
        own.iterate(part, labels.numpy(), step, 0.001, 0.9, 5e-4)

    parts: list[tuple[float, ...]] = []
    times = np.zeros((2, args.iterations))
    for step in range(args.iterations):
        for which, run in enumerate((by_executor, by_torch)):
            ranks.barrier()
            begin = perf_counter()
            run(step)
            times[which, step] = perf_counter() - begin
    slowest = ranks.max_of_each(times)[:, 2:]
    if ranks.rank == 0:
        executor_s, torch_s = np.median(slowest, axis=1)
        least = slowest.min(axis=1)
        print(f"AlexNet, batch {args.batch}, {args.strategy} on {ranks.size} ranks: executor "
              f"{executor_s * 1e3:.0f} ms, hpcpar.torch {torch_s * 1e3:.0f} ms, ratio "
              f"{torch_s / executor_s:.3f}; of the fastest iterations {least[1] / least[0]:.3f}")
        shown = zip(("forward", "loss", "backward", "optimizer"), np.median(parts[2:], axis=0),
                    strict=True)
        print("hpcpar.torch: " + ", ".join(f"{name} {s * 1e3:.0f} ms" for name, s in shown))
        times_s = own.training.times().seconds if own.training else np.zeros(0)
        phases = [(step.phase.value, s) for step, s in zip(
            own.training.schedule.steps, times_s, strict=True)] if own.training else []
        sums = {phase: sum(s for p, s in phases if p == phase) for phase, _ in phases}
        print("executor: " + ", ".join(f"{name} {s * 1e3:.0f} ms" for name, s in sums.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
