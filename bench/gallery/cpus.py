"""How much longer training takes on CPUs than the model of kernels says from their data sheets.

Usage: python -m bench.gallery.cpus

The model is fitted to GPUs. `CPU_SLOWDOWN` makes the median of these rows 1, and
`bench.gallery.intervals` makes the class ``cpu`` of them. ``runs.csv`` has most of the rows;
``cpus.csv`` has the others: two frameworks on a node of two Xeon Gold 6126
(tensorflow/benchmarks issue 397; the batch is the script's default), Intel's Caffe on 64 nodes of
two Xeon 8124M (stanford-futuredata/dawn-bench-entries).
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from bench.gallery import prediction
from bench.gallery.prediction import predict
from bench.gallery.rows import Row, runs
from hpcpar.machine import catalog, files
from hpcpar.machine.model import Device

FILE = Path(__file__).with_suffix(".csv")
#: Cells of a row on one node that computes on synthetic images.
ALONE = {"machine": "", "devices": "1", "devices_per_node": "1", "strategy": "none", "sync": "none",
         "data": "synthetic", "precision": "fp32", "note": "", "forward_ms": "", "id": ""}
#: A machine of one rank per node, for rows whose machine has no preset.
LEVELS = "piz-daint"


def node(cores: int, lanes: int, clock_ghz: float, bandwidth_gb_per_s: float) -> Device:
    """A node of two sockets, from its data sheet."""
    return Device(64 * 10**9, 2e9 * cores * lanes * clock_ghz, 1e9 * bandwidth_gb_per_s,
                  launch_s=1e-5, multiprocessors=cores, lanes=lanes, kind="cpu")


#: Devices of the rows: cores, lanes of a core, base clock, and bandwidth of both sockets.
NODES = {"2xE5-2630v3": node(16, 16, 2.4, 119), "2xE5-2666v3": node(20, 16, 2.9, 119),
         "2xGold6126": node(24, 32, 2.6, 256), "2x8124M": node(36, 32, 3.0, 256),
         **{name: catalog.device(name) for name in ("A64FX", "KNL-7250")}}


def rows() -> list[Row]:
    """The rows on CPUs."""
    with FILE.open(encoding="utf-8", newline="") as file:
        more = [Row({**ALONE, **cells}) for cells in csv.DictReader(file)]
    return [*(row for row in runs() if row.device in NODES), *more]


def logs() -> Iterator[tuple[Row, float]]:
    """The rows, with the logarithm of predicted over measured time."""
    for row in rows():
        machine = files.load(row.machine if row.machine in files.presets() else LEVELS)
        device = replace(NODES[row.device], software_year=float(row.year))
        machine = replace(machine, device=device)
        with patch.object(prediction, "machine_of", lambda row, machine=machine: machine):
            yield row, predict(row).log


def main() -> None:
    """Prints every row."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for row, log in logs():
        print(f"{row.device:12} {row.network:12} {row.framework[:24]:24} measured / predicted "
              f"{math.exp(-log):5.2f}")


if __name__ == "__main__":
    main()
