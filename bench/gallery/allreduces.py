"""Published times of allreduces alone, beside the prices of a machine's levels.

Usage: python -m bench.gallery.allreduces

``allreduce.csv`` is DeepBench's, ``allreduce_nccl.csv`` has logs of nccl-tests. Rows without a time
or with unknown links do not count. `MACHINES` has the links of each; latencies, and the share of
the bandwidth that messages reach, are the same as in `bench.gallery.series.levels_of`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gallery.series import levels_of
from bench.gallery.tables import TITLES, judgment
from hpcpar.cost.network.algorithm_choice import allowed, cheapest
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.machine import files
from hpcpar.plan.config import MeshAxis
from hpcpar.schedule.steps import Kind

HERE = Path(__file__).parent
#: Words of a row's device -> ranks of a node, GB/s inside it and its links, GB/s of the network and
#: adapters of a node. DeepBench does not state its nodes: 8 GPUs and FDR InfiniBand are typical.
MACHINES = {
    "p4d.24xlarge": (8, 300.0, 1, 12.5, 4), "p3dn.24xlarge": (8, 25.0, 6, 12.5, 1),
    "1 a node, PCIe), 100G": (1, 9.0, 1, 12.5, 1), "1 a node, PCIe), 10G": (1, 9.0, 1, 1.25, 1),
    "4 a node, PCIe), 100G": (4, 9.0, 1, 12.5, 1), "4 a node, PCIe), 10G": (4, 9.0, 1, 1.25, 1),
    "KNL": (1, 12.5, 1, 12.5, 1), "P100": (8, 20.0, 4, 12.5, 4),
    "TitanX": (8, 12.0, 1, 6.8, 1), "1080Ti": (8, 12.0, 1, 6.8, 1), "M40": (8, 12.0, 1, 6.8, 1),
}
#: Sizes of messages, by their upper end in bytes.
SIZES = {"to 64 kB": 2**16, "to 4 MB": 2**22, "to 64 MB": 2**26, "above 64 MB": math.inf}


@dataclass(frozen=True)
class Allreduce:
    """A measured allreduce and its price; `log` is the logarithm of predicted over measured."""

    machine: str
    n_bytes: float
    log: float

    @property
    def size(self) -> str:
        """Its class of `SIZES`."""
        return next(name for name, most in SIZES.items() if self.n_bytes <= most)


def _measured() -> Iterator[tuple[str, int, float, float, str]]:
    """Device, ranks, bytes, seconds and note of every row with a time."""
    with (HERE / "allreduce.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield (row["device"], int(row["devices_or_nodes"]), 4.0 * float(row["floats"]),
                   1e-3 * float(row["ms"]), "")
    with (HERE / "allreduce_nccl.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["bytes"] and row["time_us"]:
                yield (row["device"], int(row["ranks"]), float(row["bytes"]),
                       1e-6 * float(row["time_us"]), row["note"])


def predicted() -> Iterator[Allreduce]:
    """The rows that count."""
    models: dict[str, NetworkModel] = {}
    for device, ranks, n_bytes, measured_s, note in _measured():
        name = next((words for words in MACHINES if words in device), "")
        if not name:
            continue
        if name not in models:
            machine = replace(files.load("dgx1-v100"), host=None, levels=levels_of(*MACHINES[name]))
            models[name] = NetworkModel(machine)
        way = route(models[name], [MeshAxis(1, ranks)], ranks)
        names = ["ring"] if "ring" in note else allowed(Kind.ALLREDUCE, "auto", ranks)
        seconds = float(cheapest(Kind.ALLREDUCE, n_bytes, way, names)[2])
        yield Allreduce(name, n_bytes, math.log(seconds / measured_s))


def lines() -> list[str]:
    """The section of the page."""
    found = list(predicted())
    out = ["## Allreduces alone", "",
           f"{len(found)} published times of NCCL's and MPI's allreduces (DeepBench, logs of",
           "nccl-tests), priced from data sheets of the links; nothing is fitted to them.",
           "DeepBench does not state its nodes, so theirs are assumed.", ""]
    for title, groups in (("size", SIZES), ("machine", MACHINES)):
        out += [f"| {title} | {' | '.join(TITLES)} |", "|" + " --- |" * (len(TITLES) + 1)]
        for name in groups:
            logs = [each.log for each in found if name in (each.size, each.machine)]
            out.append(judgment(name.replace("a node, PCIe),", "per node,"), logs))
        out.append("")
    return out


if __name__ == "__main__":
    print("\n".join(lines()))
