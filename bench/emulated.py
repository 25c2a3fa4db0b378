"""Simulated, predicted and measured time of an iteration, with computing emulated.

    python bench/emulated.py [--hosts 16] [--calibrated 2] [--rates 100,200] [--strategies data,...]

Hosts are joined by shaped links of each rate (Mbit/s) on this machine; root only. On each network
`calibrate` measures the links with a rank on each of `--calibrated` hosts (default: all); ranks
then `run --device emulate`: their messages are real, their computing is slept, so that many hosts
fit few cores, and hides whatever the network does. The cores limit what all hosts send together:
two drove 16 links of 100 Mbit/s at two thirds of that. Results in `--folder` are not measured
again. The exit status is 1 where the simulated times of a network's strategies are over 5%
off in the mean.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hpcpar  # noqa: E402
from bench.unseen.jobs import LIMIT_S, SCRIPT  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Device  # noqa: E402
from hpcpar.report.tables import seconds, show  # noqa: E402
from hpcpar.train.record_file import load_record  # noqa: E402

NETWORK, INPUT, CLASSES, SAMPLES = "mobilenet_v2", "3x64x64", "100", 4
#: A device that computes for about as long as such links take.
DEVICE = Device(memory_bytes=10**9, flops_per_s=2e9, bandwidth_bytes_per_s=2e9, launch_s=1e-5)
STEPS = 8
LIMIT = 0.05


def sh(*words: object) -> None:
    """Runs a command; its output counts only where it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")


def machine_of(folder: Path, calibrated: int, rate: int) -> str:
    """The file of the links as calibrated, with another device, whose computing hides all."""
    name = f"{calibrated}-{rate}.toml"
    measured, path = folder / f"links-{name}", folder / f"machine-{name}"
    if not measured.exists():
        sh("bash", SCRIPT, "run", "-n", calibrated, "hpcpar", "calibrate", "-o", measured)
    files.save(replace(files.load(str(measured)), device=DEVICE, kinds={}, compute={},
                       overlap=1.0, progress=1.0), str(path))
    return str(path)


def rows(folder: Path, hosts: int, calibrated: int, rate: int,
         strategies: list[str]) -> list[tuple[float, ...]]:
    """Measured, simulated and predicted seconds of each strategy."""
    sh("bash", SCRIPT, "up", hosts, rate)
    machine = machine_of(folder, calibrated, rate)
    out: list[tuple[float, ...]] = []
    for strategy in strategies:
        name = f"{calibrated}-{hosts}-{rate}-{strategy.replace('/', '-')}"
        plan, record = folder / "plan.json", folder / f"{name}.h5"
        sh("hpcpar", "plan", "--network", NETWORK, "--input", INPUT, "--classes", CLASSES,
           "--machine", machine, "--ranks", hosts, "--batch", SAMPLES * hosts, "--strategy",
           strategy, "-o", plan, "--force")
        if not record.exists():
            sh("bash", SCRIPT, "run", "-n", hosts, "hpcpar", "run", "--plan", plan, "--data",
               folder / "data.h5", "--steps", STEPS, "--device", "emulate", "--out", record)
        measured_s = float(np.median(load_record(str(record)).slowest_s))
        simulated = hpcpar.simulate(str(plan)).simulated
        out.append((measured_s, simulated.played.mean_s, simulated.predicted_s))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--calibrated", type=int, help="hosts of the calibration")
    parser.add_argument("--rates", default="100,200", help="Mbit/s")
    parser.add_argument("--strategies", default="data,df:4x4,pipeline:4x4")
    parser.add_argument("--folder", default="runs/emulated")
    options = parser.parse_args()
    calibrated = options.calibrated or options.hosts
    folder, strategies = Path(options.folder).resolve(), options.strategies.split(",")
    folder.mkdir(parents=True, exist_ok=True)
    sh("hpcpar", "data", "synthetic", folder / "data.h5", "--input", INPUT, "--classes", CLASSES,
       "--samples", SAMPLES * options.hosts)
    wrong = False
    for rate in map(int, options.rates.split(",")):
        found = rows(folder, options.hosts, calibrated, rate, strategies)
        shown = [(strategy, *map(seconds, row), *(f"{s / row[0]:.3f}" for s in row[1:]))
                 for strategy, row in zip(strategies, found, strict=True)]
        show(f"{options.hosts} hosts, {rate} Mbit/s, calibrated on {calibrated}: {NETWORK}",
             ("strategy", "measured", "simulated", "predicted", "simulated / measured",
              "predicted / measured"), shown)
        off = np.mean([abs(simulated / measured - 1) for measured, simulated, _ in found])
        wrong |= bool(off > LIMIT)
    sh("bash", SCRIPT, "down")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
