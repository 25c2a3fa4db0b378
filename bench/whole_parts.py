"""Predicted and measured iterations of networks with parts that run whole.

Run: ``python bench/whole_parts.py`` (eight minutes on two cores; needs PyTorch). For each network
of `bench/whole_networks.py` a calibration measures the machine with batches of 32 on 2 ranks. Plans
for batches of 20 under ``data`` and ``spatial`` are predicted from it, then run twice. Prints the
faster run beside the prediction.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ddp import ROOT, hpcpar
from hpcpar.report.tables import show

NETWORKS = ("ViT", "Attended", "Rows", "Fourier", "Bicubic")
SHAPE, RANKS, SEEN, BATCH, STEPS, RUNS = "3x64x64", 2, 32, 20, 12, 2


def measure(name: str, folder: str) -> list[tuple[str, ...]]:
    """A row for each strategy."""
    network = ("--network", f"{ROOT}/bench/whole_networks.py:{name}", "--input", SHAPE)
    data, machine = f"{folder}/{name}.h5", f"{folder}/{name}.toml"
    hpcpar("data", "synthetic", data, "--input", SHAPE, "--classes", 10, "--samples", 96)
    hpcpar("calibrate", *network, "--batch", SEEN, "-o", machine, ranks=RANKS)
    rows: list[tuple[str, ...]] = []
    for strategy in ("data", "spatial"):
        plan = f"{folder}/{name}-{strategy}.json"
        hpcpar("plan", *network, "--batch", BATCH, "--ranks", RANKS, "--machine", machine,
               "--strategy", strategy, "-o", plan)
        told = [json.loads(hpcpar("run", "--plan", plan, "--data", data, "--steps", STEPS,
                                  "--json", ranks=RANKS)) for _ in range(RUNS)]
        measured_s = min(each["measured_iteration_s"] for each in told)
        predicted_s = told[0]["predicted_iteration_s"]
        rows.append((name, strategy, f"{measured_s * 1e3:.0f} ms", f"{predicted_s * 1e3:.0f} ms",
                     f"{predicted_s / measured_s:.2f}"))
    return rows


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in NETWORKS for row in measure(name, folder)]
    show("iterations", ("network", "strategy", "measured", "predicted", "predicted / measured"),
         rows, left=2)


if __name__ == "__main__":
    main()
