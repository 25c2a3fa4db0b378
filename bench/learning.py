"""How far the defaults train every built-in network, beside PyTorch's own defaults.

Run: ``python bench/learning.py`` (two hours; ``--networks`` for some of them; needs PyTorch).
Both train on the same 512 synthetic images of 10 classes, batch 16, in as many iterations: ours by
``hpcpar run`` without an option, PyTorch's with the weights that its layers start with and SGD of
the same rate, momentum and decay. Ours goes on to 200 iterations. It exits with 1 where ours starts
with another loss than a guess has, has learned less, or ends above its first loss.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import h5py  # noqa: E402
import numpy as np  # noqa: E402

from hpcpar.network.layers import BatchNorm  # noqa: E402
from hpcpar.plan.plan import NetworkSpec  # noqa: E402
from hpcpar.report.tables import show  # noqa: E402
from tests.reference import Reference  # noqa: E402

#: Network -> size of its images, 32 to 99 pixels, and iterations. Without batch normalization
#: VGG-16 learns nothing in 96 iterations, in PyTorch either.
CASES = {"lenet5": (32, 96), "mlp": (32, 96), "alexnet": (67, 96), "alexnet-owt": (67, 96),
         "vgg16": (32, 192), "vgg16_bn": (32, 96), "resnet50": (32, 96), "resnet152": (32, 96),
         "inception_v3": (75, 96), "mobilenet_v2": (32, 96)}
SAMPLES, CLASSES, BATCH = 512, 10, 16
#: Iterations whose mean loss is compared; noise of that mean, relative.
LAST, NOISE = 16, 0.05
#: Iterations in which ours may not diverge; largest deviation of its first loss from a guess's.
ALL, START = 200, 0.15


def mean(losses: list[float]) -> float:
    """Mean of the last losses."""
    return float(np.mean(losses[-LAST:]))


def command(folder: str, *words: object) -> str:
    """Standard output of an ``hpcpar`` command."""
    line = [sys.executable, "-m", "hpcpar", *map(str, words)]
    return subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}).stdout


def ours(folder: str, name: str, shape: tuple[int, ...], steps: int) -> list[float]:
    """The losses of ``hpcpar run``; the data stay in the folder."""
    size = "x".join(map(str, shape))
    command(folder, "data", "synthetic", "data.h5", "--input", size, "--classes", CLASSES,
            "--samples", SAMPLES)
    command(folder, "plan", "--network", name, "--input", size, "--classes", CLASSES, "--ranks", 1,
            "--batch", BATCH, "--strategy", "data", "-o", "plan.json")
    done = command(folder, "run", "--plan", "plan.json", "--data", "data.h5", "--steps", steps,
                   "--json")
    return list(json.loads(done)["losses"])


def pytorchs(folder: str, name: str, shape: tuple[int, ...], steps: int) -> list[float]:
    """The losses of the same network in PyTorch, from the weights that its layers start with."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = NetworkSpec(name, shape, CLASSES).build()
    reference = Reference(network, 0)
    with torch.no_grad():
        for layer in network.weighted:
            if isinstance(layer, BatchNorm):
                reference.weights[layer.name][0].fill_(1.0)
                continue
            weight, *bias = reference.weights[layer.name]
            bound = weight[0].numel() ** -0.5  # kaiming_uniform_(a=sqrt(5)), and of the bias
            for tensor in (weight, *bias):
                tensor.uniform_(-bound, bound)
    with h5py.File(f"{folder}/data.h5") as f:
        images = (f["images"][:].astype(np.float32) - f.attrs["mean"]) * f.attrs["scale"]
        labels = f["labels"][:]
    rng, order, losses = np.random.default_rng(0), list[np.ndarray](), list[float]()
    for step in range(steps):
        order = order or list(rng.permutation(SAMPLES).reshape(-1, BATCH))
        at = order.pop()
        losses.append(reference.iterate(images[at], labels[at], step, 0.01, 0.9, 0.0005))
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--networks", default=",".join(CASES), help="some, separated by commas")
    rows, good = [], True
    for name in parser.parse_args().networks.split(","):
        size, steps = CASES[name]
        channels = 1 if name in ("lenet5", "mlp") else 3
        with tempfile.TemporaryDirectory() as folder:
            losses = ours(folder, name, (channels, size, size), ALL)
            torchs = pytorchs(folder, name, (channels, size, size), steps)
        guess = CLASSES * math.log(2) if name == "alexnet-owt" else math.log(CLASSES)
        first, last = losses[0], mean(losses[:steps])
        passes = (abs(first / guess - 1) <= START, last <= (1 + NOISE) * mean(torchs),
                  mean(losses) <= (1 + NOISE) * first)
        good &= all(passes)
        rows.append((name, size, steps, *(f"{x:.2f}" for x in (
            first, last, torchs[0], mean(torchs), mean(losses), max(losses))),
            *("yes" if ok else "no" for ok in passes)))
        print(*rows[-1], file=sys.stderr)
    show(f"loss of the first iteration, and mean of the last {LAST}; after {ALL} iterations, and "
         "the largest",
         ("network", "pixels", "iterations", "first", "last", "PyTorch first", "PyTorch last",
          f"at {ALL}", "largest", "starts as a guess", "as far", "stays below its first"), rows,
         left=1)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
