"""The parts of ``bench/gpu_session.py``: ``python -m bench.gpu_parts NAME RESULT [--small]``.

A part returns facts (by name) and rows of a table, which go into the JSON file RESULT. It may call
`keep` to write what it has so far.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Session:
    """The results that a part writes to, and its sizes.

    Attributes
    ----------
    small : bool
        Small networks and few repeats: the GPU is only pretended.
    """

    result: Path
    small: bool
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def keep(self) -> None:
        """Write what was found so far."""
        self.result.write_text(json.dumps({"facts": self.facts, "rows": self.rows}))

    @property
    def cases(self) -> list[tuple[str, int]]:
        """Networks and batches."""
        if self.small:
            return [("lenet5", 4)]
        return [("resnet50", 32), ("alexnet", 128), ("vgg16", 32), ("resnet50", 128)]

    @property
    def repeats(self) -> int:
        return 2 if self.small else 16


def versions(session: Session) -> None:
    """The card, and what drives it."""
    from hpcpar.kernels.cupy_environment import environment

    session.facts |= environment()
    for package in ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
                    "nvidia-nccl-cu13", "nvidia-nccl-cu12", "torch"):
        try:
            session.facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    asked = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit",
             "clocks_throttle_reasons.active", "temperature.gpu")
    if shutil.which("nvidia-smi"):
        told = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv"],
                              capture_output=True, text=True, timeout=30)
        session.facts["nvidia-smi"] = told.stdout.strip().splitlines()


def tests(session: Session) -> None:
    """The tests that need a GPU."""
    selected = ["-k", "boxes or elementwise or lenet5 or nccl or stream"] if session.small else []
    several = ["-n", "4"] if importlib.util.find_spec("xdist") else []
    done = subprocess.run([sys.executable, "-m", "pytest", "tests/gpu", "-rs", "--tb=short",
                           "-o", "addopts=", *several, *selected],
                          cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr[-2000:])
    session.facts["tests/gpu"] = done.stdout.strip().splitlines()[-1]
    session.facts["failed"] = [line for line in done.stdout.splitlines()
                               if line.startswith(("FAILED", "ERROR"))]
    session.keep()
    if done.returncode:
        raise SystemExit(1)


def sanitizer(session: Session) -> None:
    """A few kernels under the tools that find bad addresses and races."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        session.facts["compute-sanitizer"] = "not installed"
        return
    failed = False
    for tool in ("memcheck", "racecheck"):
        done = subprocess.run(
            [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest",
             "tests/gpu", "-q", "-k", "as_on_the_cpu and float32 and not alex"],
            cwd=ROOT, capture_output=True, text=True)
        print(done.stdout[-4000:])
        session.facts[tool] = next((line for line in reversed(done.stdout.splitlines())
                                    if "SUMMARY" in line), f"exit status {done.returncode}")
        session.keep()
        failed = failed or done.returncode != 0
    if failed:
        raise SystemExit(1)


def kernels(session: Session) -> None:
    """Convolutions against PyTorch on the same card."""
    from bench import gpu_kernels
    from hpcpar.kernels import backend
    from hpcpar.kernels.cupy_backend import CupyBackend

    for precision in gpu_kernels.PRECISIONS:
        gpu = backend("gpu", gpu_kernels.math_of(precision))
        assert isinstance(gpu, CupyBackend)
        session.facts["convolutions"] = gpu.convolutions
        for name, batch in session.cases:
            session.rows += gpu_kernels.compare(gpu, name, batch, session.repeats, precision)
            session.keep()
        session.facts[f"without an engine, {precision}"] = len(gpu.unsupported_convolutions)
        native = "conv_forward" in gpu.bfloat16_kernels
        session.facts["convolutions in amp"] = gpu.convolutions if native else "on float32 copies"


def graphs(session: Session) -> None:
    """Iterations replayed as graphs have the losses and weights of iterations step by step."""
    from bench.gpu_iterations import replayed_as_submitted

    for name, batch in [("lenet5", 64), *session.cases[:2]]:
        session.rows.append(replayed_as_submitted(name, batch, 4 if session.small else 10))
        session.keep()
    if not all(row["equal"] for row in session.rows):
        raise SystemExit("replayed iterations differ")


def iterations(session: Session) -> None:
    """Whole iterations of training against PyTorch on the same card, images on the card."""
    from bench.gpu_iterations import row

    for name, batch in session.cases:
        for precision in ("fp32", "tf32", "amp"):
            session.rows.append(row(name, batch, precision, session.repeats))
            session.keep()


def peers(session: Session) -> None:
    """PyTorch's iterations of many networks in three number formats."""
    try:
        import torch
    except ImportError:
        session.facts["PyTorch"] = "not installed"
        return
    if not torch.cuda.is_available():
        session.facts["PyTorch"] = "sees no card"
        return
    from bench import torch_iterations

    for row in torch_iterations.rows(PARTS["peers"].limit_s - 15):
        session.rows.append(row)
        session.keep()


def _hpcpar(*words: object, ranks: int = 1) -> str:
    """Output of a command of hpcpar, as a job of this number of ranks."""
    start = ["mpiexec", "-n", str(ranks)] if words[0] in ("run", "calibrate") else []
    command = [*start, sys.executable, "-m", "hpcpar", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def _data(path: Path, name: str, samples: int) -> None:
    """Random images for a network."""
    from hpcpar.network.builtin import network

    net = network(name)
    _hpcpar("data", "synthetic", path, "--input", "x".join(map(str, net.image_shape)), "--classes",
            net.classes, "--samples", samples)


def predictions(session: Session) -> None:
    """Calibrate, run and compare."""
    cases = [("lenet5", 16)] if session.small else session.cases[:2]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for name, batch in cases:
            plan, machine, data, record = (
                at / f"{name}{end}" for end in (".json", ".toml", "-data.h5", "-run.h5"))
            _hpcpar("plan", "--network", name, "--ranks", 1, "--batch", batch, "--strategy", "data",
                    "-o", plan)
            _data(data, name, 4 * batch)
            _hpcpar("calibrate", "--for", plan, "--device", "gpu", "-o", machine)
            told = json.loads(_hpcpar("run", "--plan", plan, "--machine", machine, "--data", data,
                                      "--steps", session.repeats, "--device", "gpu", "--out",
                                      record, "--json"))
            measured_s, predicted_s = (told[f"{what}_iteration_s"]
                                       for what in ("measured", "predicted"))
            session.rows.append({"network": name, "batch": batch, "measured ms": 1e3 * measured_s,
                                 "predicted ms": 1e3 * predicted_s,
                                 "predicted/measured": predicted_s / measured_s})
            session.keep()
            (session.result.parent / f"compare-{name}.txt").write_text(
                _hpcpar("compare", record, "--all"))


def ranks(session: Session) -> None:
    """Several ranks on one card, and NCCL with one rank, have the losses of one rank."""
    for name, batch, steps in (("lenet5", 64, 3 if session.small else 10),
                               *[("resnet50", 16, 5)] * (not session.small)):
        with tempfile.TemporaryDirectory() as folder:
            _ranks_of(session, name, batch, steps, Path(folder))
    if any(row["losses off"] > 1e-3 for row in session.rows):
        raise SystemExit("losses differ")


def _ranks_of(session: Session, name: str, batch: int, steps: int, folder: Path) -> None:
    """The jobs of a network; batch normalization takes its statistics over all ranks."""
    data = folder / "d.h5"
    _data(data, name, 2 * batch)
    first: list[float] = []
    for count, transport, strategy in ((1, "staged", "data"), (1, "nccl", "data"),
                                       (2, "staged", "data"), (2, "staged", "filter"),
                                       (2, "staged", "spatial"), (4, "staged", "data")):
        plan = folder / f"{strategy}{count}.json"
        _hpcpar("plan", "--network", name, "--ranks", count, "--batch", batch, "--strategy",
                strategy, "-o", plan)
        begin = time.perf_counter()
        done = json.loads(_hpcpar(
            "run", "--plan", plan, "--data", data, "--steps", steps, "--device", "gpu",
            "--transport", transport, "--json", ranks=count))
        first = first or done["losses"]
        off = float(np.abs(np.array(done["losses"]) / np.array(first) - 1).max())
        session.rows.append({
            "network": name, "ranks": count, "transport": transport, "strategy": strategy,
            "losses off": off, "ms": 1e3 * done["measured_iteration_s"],
            "job s": time.perf_counter() - begin})
        session.keep()


def costs(session: Session) -> None:
    """Launches, synchronization and copies."""
    from hpcpar.kernels import backend

    gpu = backend("gpu")
    small, repeats = gpu.zeros((8,), "float32"), 10 if session.small else 2000

    def each_s(action: Callable[[], None]) -> float:
        gpu.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            action()
        gpu.synchronize()
        return (time.perf_counter() - begin) / repeats

    def waited() -> None:
        gpu.scale(small, 1.0)
        gpu.synchronize()

    found: dict[str, Callable[[], None]] = {
        "launch of a kernel by CuPy": lambda: gpu.scale(small, 1.0),
        "launch of a kernel of the project": lambda: gpu.activation_forward(
            "relu", (0.0, 0.0), small, small),
        "prepared launch of a kernel of the project": gpu.bind(
            "activation_forward", "relu", (0.0, 0.0), small, small),
        "launch and wait": waited,
        "event": gpu.mark}
    session.rows += [{"what": what, "us": 1e6 * each_s(action), "GB/s": "-"}
                     for what, action in found.items()]
    items = 1 << (12 if session.small else 28)
    there, host = gpu.zeros((items,), "float32"), gpu.host_buffer(items, "float32")
    other = gpu.zeros((items,), "float32")
    host[:] = 0
    repeats = 2 if session.small else 10
    for what, action in (("host to device", lambda: gpu.enqueue_to_device(host, there)),
                         ("device to host", lambda: gpu.enqueue_to_host(there, host)),
                         ("device to device (read and written)",
                          lambda: gpu.unpack(there, other))):
        moved_bytes = there.nbytes * (2 if "written" in what else 1)
        took_s = each_s(action)
        session.rows.append({"what": what, "us": 1e6 * took_s, "GB/s": 1e-9 * moved_bytes / took_s})
    name = "lenet5" if session.small else "resnet50"
    from bench.gpu_iterations import own_s

    for how, graphs in (("submitted", False), ("replayed", True)):
        session.rows.append({"what": f"iteration of {name} of 2 images, {how}: host time",
                             "us": 1e6 * own_s(name, 2, "fp32", graphs, session.repeats),
                             "GB/s": "-"})


@dataclass(frozen=True)
class Part:
    """A part of the session."""

    title: str
    limit_s: int
    run: Callable[[Session], None]


#: In the order of their worth.
PARTS = {
    "versions": Part("Versions and clocks", 60, versions),
    "graphs": Part("Iterations as graphs", 120, graphs),
    "tests": Part("Tests that need a GPU", 300, tests),
    "kernels": Part("Convolutions against PyTorch", 240, kernels),
    "iterations": Part("Iterations against PyTorch", 300, iterations),
    "predictions": Part("Predicted against measured", 240, predictions),
    "ranks": Part("Ranks that share the card, and NCCL", 120, ranks),
    "costs": Part("Launches, waits and copies", 60, costs),
    "peers": Part("PyTorch in three number formats", 240, peers),
    "sanitizer": Part("Bad addresses and races", 180, sanitizer),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("result", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    session = Session(options.result, options.small)
    try:
        PARTS[options.part].run(session)
    finally:
        session.keep()
    return 0


if __name__ == "__main__":
    sys.exit(main())
