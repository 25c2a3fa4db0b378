"""Iterations beside PyTorch's DistributedDataParallel, on the same cores.

Run: ``python bench/ddp.py`` (half an hour; ``--networks alexnet`` for one of them; needs PyTorch).
The machine is calibrated for each network, which gets two plans: ``data`` and ``auto``. Jobs of
both and of DistributedDataParallel over gloo take turns, so that noise affects them alike: same
network, batch and optimizer, float32, one thread per rank. The median iteration of a job counts,
and the median over the rounds of the ratio. It exits with 1 where ``auto`` is below `GOAL`.
``--kernels numpy,torch --strategies owt`` compares convolutions under one plan, not calibrated.
``--best`` first runs DistributedDataParallel once with each of `TUNINGS` and takes the fastest.
A tuning that fails is reported with its error. `GOALS` holds for this comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hpcpar import load_network  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.network.layers import BatchNorm, Dropout  # noqa: E402
from hpcpar.network.layers.base import shape_text  # noqa: E402
from hpcpar.report.tables import seconds, show  # noqa: E402

#: Network -> images of a batch.
BATCHES = {"alexnet": 32, "vgg16": 8, "resnet50": 16}
#: Wanted throughput of ``auto``, as a multiple of DistributedDataParallel's.
GOAL = 1.5
#: The same beside DistributedDataParallel at its best.
GOALS = {"alexnet": 1.8, "vgg16": 1.4, "resnet50": 1.2}
#: Settings of DistributedDataParallel by name. ``tuned``: gradients are views of buckets, the graph
#: is static, and freed memory is kept (as ours with PyTorch's convolutions).
TUNINGS: dict[str, tuple[str, ...]] = {
    "plain": (), "tuned": ("tuned",), "channels-last": ("tuned", "channels-last"),
    "compiled": ("tuned", "compile"),
    "compiled channels-last": ("tuned", "channels-last", "compile")}
RATE, MOMENTUM, DECAY = 1e-4, 0.9, 5e-4


def environment() -> dict[str, str]:
    """One thread per rank, the processor's own BLAS kernels."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    return env | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def hpcpar(*words: object, ranks: int = 0) -> str:
    """Standard output of a command."""
    launch = ["mpiexec", "-n", str(ranks)] if ranks else []
    return subprocess.run([*launch, sys.executable, "-m", "hpcpar", *map(str, words)], cwd=ROOT,
                          env=environment(), check=True, stdout=subprocess.PIPE, text=True).stdout


def plain(name: str) -> str:
    """A layer's name as PyTorch takes it."""
    return name.replace(".", "_")


def twin(network: Network) -> Any:
    """The network as a module of PyTorch."""
    import torch

    from tests import reference_layers

    class Twin(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.ParameterDict()
            for layer in network.weighted:
                x = network.input_shape(layer)
                norm = isinstance(layer, BatchNorm)
                self.values[f"{plain(layer.name)}_weight"] = torch.nn.Parameter(
                    torch.ones(layer.weight_shape(x)) if norm
                    else 0.05 * torch.randn(layer.weight_shape(x)))
                if layer.bias_shape(x):
                    self.values[f"{plain(layer.name)}_bias"] = torch.nn.Parameter(
                        torch.zeros(layer.bias_shape(x)))

        def weights(self, name: str) -> list[Any]:
            names = (f"{plain(name)}_weight", f"{plain(name)}_bias")
            return [self.values[key] for key in names if key in self.values]

        def forward(self, images: Any) -> Any:
            have = {network.layers[0].name: images}
            for layer in network.layers[1:-1]:
                xs = [have[name] for name in layer.inputs]
                if isinstance(layer, BatchNorm):
                    have[layer.name] = torch.nn.functional.batch_norm(
                        xs[0], None, None, *self.weights(layer.name), training=True, eps=layer.eps)
                elif isinstance(layer, Dropout):
                    have[layer.name] = torch.nn.functional.dropout(xs[0], layer.rate)
                else:
                    have[layer.name] = reference_layers.forward(layer, xs,
                                                                self.weights(layer.name))
            return have[network.layers[-1].inputs[0]]

    return Twin()


def work(name: str, rank: int, ranks: int, steps: int, store: str, tuning: str) -> None:
    """A process of the DistributedDataParallel job; rank 0 prints the seconds of iterations."""
    import torch
    import torch.distributed as dist

    from hpcpar.kernels.torch_backend import keep_freed_memory

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    network, settings = load_network(name), TUNINGS[tuning]
    tuned, last = "tuned" in settings, "channels-last" in settings
    module, form = twin(network), torch.channels_last if last else torch.contiguous_format
    if "compile" in settings:  # one graph, without the loop over layers
        module = torch.fx.symbolic_trace(module)
    for value in module.parameters():
        if last and value.dim() == 4:
            value.data = value.data.contiguous(memory_format=form)
    if tuned:
        keep_freed_memory()
    model = torch.nn.parallel.DistributedDataParallel(
        module, gradient_as_bucket_view=tuned, static_graph=tuned)
    update = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=DECAY, fused=tuned)
    if "compile" in settings:
        model = torch.compile(model)
    images = torch.randn(BATCHES[name] // ranks, *network.image_shape).contiguous(
        memory_format=form)
    labels = torch.randint(network.classes, (len(images),))
    took_s = []
    for _ in range(steps):
        begin_s = time.perf_counter()
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        update.step()
        loss.item()
        took_s.append(time.perf_counter() - begin_s)
    if rank == 0:
        print(json.dumps(took_s))
    dist.destroy_process_group()


def ddp_s(name: str, ranks: int, steps: int, folder: str, tuning: str) -> float:
    """Seconds of an iteration of DistributedDataParallel.

    Raises
    ------
    RuntimeError
        A process failed, with its last line of errors.
    """
    store = f"{folder}/store-{time.monotonic_ns()}"
    env = environment() | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
    errors = Path(f"{store}.errors")
    with errors.open("w") as file:
        jobs = [subprocess.Popen([sys.executable, __file__, "--work", name, str(rank), str(ranks),
                                  str(steps), store, tuning], stdout=subprocess.PIPE, stderr=file,
                                 text=True, env=env) for rank in range(ranks)]
        told = [job.communicate(timeout=1200)[0] for job in jobs]
    if any(job.returncode for job in jobs):
        raise RuntimeError(f"DistributedDataParallel ({tuning}) failed on {name}: "
                           f"{errors.read_text().strip().splitlines()[-1:]}")
    return statistics.median(json.loads(told[0])[2:])


def fastest(name: str, ranks: int, steps: int, folder: str) -> str:
    """The fastest of `TUNINGS`, each measured in one job; prints all."""
    took_s: dict[str, float] = {}
    for tuning in TUNINGS:
        try:
            took_s[tuning] = ddp_s(name, ranks, steps, folder, tuning)
            print(f"{name}: DDP {tuning}: {took_s[tuning]:.3f} s", flush=True)
        except RuntimeError as err:
            print(f"{name}: not compared: {err}", flush=True)
    return min(took_s, key=lambda tuning: took_s[tuning])


def ours_s(plan: str, data: str, ranks: int, steps: int, kernels: str) -> float:
    """Seconds of an iteration under a plan."""
    told = hpcpar("run", "--plan", plan, "--data", data, "--steps", steps, "--rate", RATE,
                  "--kernels", kernels, "--json", ranks=ranks)
    return float(json.loads(told)["measured_iteration_s"])


def measure(name: str, args: argparse.Namespace, folder: str) -> tuple[list[str], list[float]]:
    """The cells of a row, and the ratios of the contenders."""
    network, batch, ranks = load_network(name), BATCHES[name], args.ranks
    machine, data = f"{folder}/{name}.toml", f"{folder}/{name}.h5"
    hpcpar("data", "synthetic", data, "--input", shape_text(network.image_shape), "--classes",
           network.classes, "--samples", 4 * batch)
    plans: dict[tuple[str, str], str] = {}
    for kernels in args.kernels:
        if "auto" in args.strategies:
            machine = f"{folder}/{name}-{kernels}.toml"
            hpcpar("calibrate", "--network", name, "--batch", batch, "-o", machine, "--kernels",
                   kernels, ranks=ranks)
        for strategy in args.strategies:
            path = plans[strategy, kernels] = f"{folder}/{name}-{strategy}-{kernels}.json"
            hpcpar("plan", "--network", name, "--batch", batch, "--ranks", ranks, "--machine",
                   machine if os.path.exists(machine) else "local", "--strategy", strategy, "-o",
                   path)
    tuning = fastest(name, ranks, args.steps, folder) if args.best else "plain"
    ddp: list[float] = []
    times: dict[tuple[str, str], list[float]] = {key: [] for key in plans}
    for _ in range(args.rounds):
        ddp.append(ddp_s(name, ranks, args.steps, folder, tuning))
        for key, plan in plans.items():
            times[key].append(ours_s(plan, data, ranks, args.steps, key[1]))
        last = {" ".join(key): f"{values[-1]:.3f} s" for key, values in times.items()}
        print(name, {"ddp": f"{ddp[-1]:.3f} s"} | last, file=sys.stderr)
    ratios = [statistics.median(a / b for a, b in zip(ddp, values, strict=True))
              for values in times.values()]
    cells = [seconds(statistics.median(values)) for values in (ddp, *times.values())]
    return [name, str(batch), tuning, *cells], ratios


def several(text: str) -> list[str]:
    """Words that commas separate."""
    return text.split(",")


def main() -> int:
    """Prints the table; returns 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--networks", type=several, default=[*BATCHES],
                        help="names, separated by commas")
    parser.add_argument("--strategies", default=["data", "auto"], type=several)
    parser.add_argument("--kernels", default=["auto"], help="auto, numpy, torch, or several",
                        type=several)
    parser.add_argument("--best", action="store_true",
                        help="beside the fastest tuning of DistributedDataParallel")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="iterations of a job")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, args, folder) for name in args.networks]
    contenders = [f"{strategy} {kernels}" for kernels in args.kernels
                  for strategy in args.strategies]
    show(f"an iteration on {args.ranks} ranks, and times the throughput of "
         "DistributedDataParallel",
         ("network", "batch", "tuning", "DDP", *contenders,
          *(f"{each} / DDP" for each in contenders)),
         [(*cells, *(f"{ratio:.2f}" for ratio in ratios)) for cells, ratios in rows],
         left=1, text=("tuning",))
    goals = [GOALS[name] if args.best else GOAL for name in args.networks]
    return int("auto" in args.strategies and any(
        ratios[-1] < goal for goal, (_, ratios) in zip(goals, rows, strict=True)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        rank, ranks, steps = map(int, sys.argv[3:6])
        work(sys.argv[2], rank, ranks, steps, *sys.argv[6:8])
        sys.exit()
    sys.exit(main())
