"""A loop of PyTorch's by `hpcpar.torch`, beside DistributedDataParallel and the executor's own.

Run: ``mpiexec -n 2 python bench/torch_overhead.py --batch 16 --iterations 12 --strategy data``.
All train the same module on the same samples, an iteration of each in turn: ``executor`` and
``hpcpar.torch`` under the same plan, ``DDP`` over gloo. Prints the medians of the slowest rank, how
many times as fast as the others `hpcpar.torch` is, and the times of its parts. ``--network unet``
has a label for each pixel.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, distributed, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import hpcpar.torch  # noqa: E402
from hpcpar.comm.communicator import Communicator  # noqa: E402
from hpcpar.comm.world import world  # noqa: E402
from hpcpar.cost.network.algorithm_choice import schedule_for  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.network import from_torch  # noqa: E402
from hpcpar.plan.boxes import local, whole_box  # noqa: E402
from hpcpar.plan.plan import NetworkSpec, Plan  # noqa: E402
from hpcpar.runtime.executor import Executor  # noqa: E402

RATE, MOMENTUM, DECAY = 0.001, 0.9, 5e-4


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


def resnet18() -> nn.Module:
    """torchvision's."""
    from torchvision.models import resnet18

    return resnet18()


class UNet(nn.Module):
    """A U-Net of four levels and 32 channels with batch normalization."""

    def __init__(self, classes: int = 8, levels: int = 4, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            self.block(*sizes) for sizes in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.merge = nn.ModuleList(self.block(2 * w, w) for w in widths[:-1])
        self.last = nn.Conv2d(width, classes, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        """Two convolutions."""
        return nn.Sequential(*(part for i in (inputs, outputs) for part in (
            nn.Conv2d(i, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        """A score of each class for each pixel."""
        kept: list[Tensor] = []
        for down in self.down:
            kept.append(down(functional.max_pool2d(x, 2) if kept else x))
            x = kept[-1]
        for level in reversed(range(len(self.up))):
            x = self.merge[level](torch.cat([kept[level], self.up[level](x)], 1))
        scores: Tensor = self.last(x)
        return scores


#: Module, sample, classes and shape of a sample's labels by name.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], int, tuple[int, ...]]] = {
    "alexnet": (alexnet, (3, 227, 227), 1000, ()), "resnet18": (resnet18, (3, 224, 224), 1000, ()),
    "unet": (UNet, (3, 128, 128), 8, (128, 128))}


def by_ddp(module: nn.Module, ranks: Any, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """An iteration of DistributedDataParallel over this rank's samples."""
    store = ranks.bcast(tempfile.mktemp())
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=ranks.rank,
                                   world_size=ranks.size)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=DECAY, fused=True)
    mine = slice(*(len(images) * (ranks.rank + i) // ranks.size for i in (0, 1)))
    images, labels = images[mine], labels[mine]

    def iterate() -> None:
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return iterate


def by_executor(module: nn.Module, plan: Plan, kernels: str, images: Tensor,
                labels: Tensor) -> Callable[[], object]:
    """An iteration of the executor with its own loss and SGD under the same plan."""
    network = from_torch(module, images.shape[1:])
    plan = replace(plan, network=NetworkSpec.of(network))
    arrays = backend("cpu", kernels=kernels)
    own = Executor(network, plan, schedule_for(network, plan), Communicator(world(), arrays),
                   arrays, 0)
    box = local(own.image_box, whole_box(tuple(images.shape[1:])))
    pixels: Any = (own.image_rows, *box)
    part, steps = np.ascontiguousarray(images.numpy()[pixels]), itertools.count()
    return lambda: own.iterate(part, labels.numpy(), next(steps), RATE, MOMENTUM, DECAY)


def main() -> int:
    """Prints the times; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="alexnet")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--strategy", default="data")
    parser.add_argument("--kernels", default="auto", help="auto, numpy or torch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape, classes, label = NETWORKS[args.network]
    ranks, module = world(), make()
    images = torch.randn(args.batch, *shape)
    labels = torch.randint(0, classes, (args.batch, *label))
    ddp = by_ddp(copy.deepcopy(module), ranks, images, labels)
    model = hpcpar.torch.parallelize(module, shape, args.batch, args.strategy,
                                     kernels=args.kernels)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=DECAY, fused=True)
    parts: list[tuple[float, ...]] = []

    def by_torch() -> None:
        times_s = [perf_counter()]
        y = model(images)
        times_s.append(perf_counter())
        losses = functional.cross_entropy(y, model.local(labels), reduction="none")
        loss = hpcpar.torch.mean(losses, model)
        times_s.append(perf_counter())
        model.backward(loss)
        times_s.append(perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        parts.append(tuple(np.diff([*times_s, perf_counter()])))

    loops: dict[str, Callable[[], object]] = {"DDP": ddp, "hpcpar.torch": by_torch}
    if not label:
        loops["executor"] = by_executor(module, model.plan, args.kernels, images, labels)
    times = np.zeros((len(loops), args.iterations))
    for step in range(args.iterations):
        for which, iterate in enumerate(loops.values()):
            ranks.barrier()
            begin = perf_counter()
            iterate()
            times[which, step] = perf_counter() - begin
    slowest = dict(zip(loops, ranks.max_of_each(times)[:, 2:], strict=True))
    if ranks.rank == 0:
        print(f"{args.network}, batch {args.batch}, {args.strategy} on {ranks.size} ranks: "
              + ", ".join(f"{name} {np.median(s) * 1e3:.0f} ms" for name, s in slowest.items()))
        ours = slowest.pop("hpcpar.torch")
        for name, times_s in slowest.items():
            print(f"hpcpar.torch is {np.median(times_s / ours):.2f} times as fast as {name} "
                  f"(fastest iterations {times_s.min() / ours.min():.2f})")
        shown = zip(("forward", "loss", "backward", "optimizer"), np.median(parts[2:], axis=0),
                    strict=True)
        print("hpcpar.torch: " + ", ".join(f"{name} {s * 1e3:.0f} ms" for name, s in shown))
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
