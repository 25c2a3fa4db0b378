"""The published series over 1 to n devices (``scaling.csv``), and files like it, as rows of the
gallery.

Interconnects come from ``fabrics.csv``: the first line whose words are in the row's cells.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.gallery.rows import HERE, Row
from hpcpar.machine.model import Level

#: Latency inside a node, and of the network, typical of GPUs (s).
LATENCIES_S = 10e-6, 25e-6
#: Devices of the series under their names in the catalog.
DEVICES = {
    "RTX 2080 Ti": "RTX2080Ti", "RTX 2080Ti": "RTX2080Ti", "P100": "P100-PCIE-16GB",
    "V100": "V100-SXM2-16GB", "K80": "K80", "P40": "P40", "Quadro RTX 6000": "RTX6000",
    "RTX 3090": "RTX3090", "A100": "A100-SXM-40GB", "RTX A6000": "A6000",
    "RTX A6000 (Lambda Cloud)": "A6000", "V100-SXM2-16GB": "V100-SXM2-16GB",
    "V100 32GB": "V100-SXM3-32GB", "LambdaCloud V100 16GB": "V100-SXM2-16GB",
    "A100 80GB SXM4": "A100-SXM-80GB", "RTX 6000 Ada": "RTX6000Ada",
    "A100 80GB PCIe": "A100-PCIE-80GB", "RTX 4090": "RTX4090", "GTX 1080": "GTX1080",
    "V100-16GB": "V100-SXM2-16GB", "V100? (195/GPU)": "V100-SXM2-16GB",
    "V100? (205/GPU)": "V100-SXM2-16GB", "Pascal GPU (model not named)": "P100-PCIE-16GB",
    "V100-SXM2 (ABCI)": "V100-SXM2-16GB", "V100-SXM2 (DGX-1)": "V100-SXM2-16GB",
    "V100-SXM3 (DGX-2H)": "V100-SXM3-32GB", "V100 (Summit)": "V100-SXM2-16GB",
    "P100 SXM2": "P100-SXM2", "P100 PCIe": "P100-PCIE-16GB", "Titan X (Maxwell)": "TitanX-Maxwell",
    "KNL-7250": "KNL-7250", "Xeon Platinum 8160": "Xeon-8160",
}
NETWORKS = {"resnet101_v2": "resnet101", "resnet50_v2": "resnet50", "alexnet": "alexnet_owt"}
#: Exchanges that no rule describes: other schedulers of messages, and servers.
OTHER_EXCHANGES = ("Byte", "arameter server", "variables on CPU", "per tensor", "FTlib", "on CPU")
#: Words of a note that rule its row out.
FAILED = ("failed", "collapse", "leave out", "broken", "outlier")
#: PyTorch and TensorFlow multiply in TF32 by default where the device can, if the source says no
#: more.
UNCLEAR = ("fp32 or tf32", "tf32")


def series(path: Path = HERE / "scaling.csv") -> Iterator[Row]:
    """The rows whose device, batch and exchange are stated and have rules here."""
    with path.open(encoding="utf-8") as file:
        for number, cells in enumerate(csv.DictReader(file), 2):
            known = cells["device"] in DEVICES and cells["batch_per_device"]
            if known and not any(words in cells["exchange"] for words in OTHER_EXCHANGES) and (
                    not any(words in cells["note"] for words in FAILED)):
                yield _row(cells, f"series-{path.stem}-{number}")


def _row(cells: dict[str, str], name: str) -> Row:
    """A series' row in the gallery's columns; one without a rate has no `iteration_ms`."""
    rate = cells["samples_per_s"]
    devices, batch = int(cells["devices"]), float(cells["batch_per_device"])
    exchange = "replicated" if "NOT overlapped" in cells["exchange"] else cells["exchange"]
    shape = cells["input"].split()[0] if cells["input"] else ""
    sync = f"{exchange}, one process" if exchange.startswith("replicated") else exchange
    return Row(cells | {
        "id": name, "network": NETWORKS.get(cells["network"], cells["network"]),
        "input": shape if shape.count("x") in (2, 3) else "3x224x224",
        "device": DEVICES[cells["device"]], "machine": _fabric(
            cells["source"], cells["device"], cells["interconnect_intra"],
            cells["interconnect_inter"]),
        "precision": _precision(cells["precision"]), "sync": sync, "forward_ms": "",
        "published_device": cells["device"],
        "iteration_ms": f"{1e3 * devices * batch / float(rate):.6g}" if rate else ""})


def _precision(words: str) -> str:
    if words.startswith(UNCLEAR):
        return "tf32"
    return "amp" if "amp" in words or words.startswith(("fp16", "mixed")) else "fp32"


@cache
def _fabrics() -> list[dict[str, str]]:
    with (HERE / "fabrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _fabric(source: str, device: str, intra: str, inter: str) -> str:
    """Number of the first line of ``fabrics.csv`` whose words are in these cells; else empty."""
    return next((str(i) for i, line in enumerate(_fabrics())
                 if line["source"] in source and line["device"] in device
                 and line["intra"] in intra and line["inter"] in inter), "")


def levels(number: str) -> tuple[Level, ...]:
    """The levels of a line of ``fabrics.csv``; latencies are typical."""
    line = _fabrics()[int(number)]
    inside, outside = float(line["node_gb_per_s"]), float(line["network_gb_per_s"])
    reached = float(line["node_reached"]), float(line["network_reached"])
    return levels_of(int(line["node_ranks"]), inside, float(line["links"]), outside, 1.0, reached)


def levels_of(ranks: int, node_gb_per_s: float, links: float, network_gb_per_s: float,
              adapters: float, reached: tuple[float, float] = (0.75, 0.75)) -> tuple[Level, ...]:
    """The levels of nodes with this many ranks."""
    return (
        Level("node", ranks, LATENCIES_S[0], 1e-9 / node_gb_per_s, links=links, reached=reached[0]),
        Level("network", 0, LATENCIES_S[1], 1e-9 / network_gb_per_s, links=adapters,
              reached=reached[1]))
