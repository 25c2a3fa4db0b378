"""Memory: predicted bytes against the device's, of batches that did and did not fit.

Every published run fitted. ``memory.csv`` has batches of which a publication says that they do not.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.gallery.networks import NETWORKS
from bench.gallery.prediction import Result
from hpcpar.machine import catalog, files
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.plan import make_plan
from hpcpar.prediction.price import price

FILE = Path(__file__).with_name("memory.csv")
#: Rows of the table that fitted: those closest to the limit.
SHOWN = 10


class Case(NamedTuple):
    """A batch on one device.

    Attributes
    ----------
    fitted : bool
        As published.
    """

    network: str
    device: str
    precision: str
    batch: int
    predicted_bytes: int
    fitted: bool
    source: str

    @property
    def limit_bytes(self) -> int:
        """The device's memory."""
        figure = catalog.figures(self.device, "gallery")["memory_bytes"]
        assert isinstance(figure, int)
        return figure

    @property
    def contradicts(self) -> bool:
        """True where the prediction says the reverse of the publication."""
        return self.fitted is not (self.predicted_bytes <= self.limit_bytes)

    @property
    def line(self) -> str:
        """A row of the table."""
        return (f"| {self.network} | {self.device} | {self.precision} | {self.batch:,} | "
                f"{'yes' if self.fitted else 'no'} | {self.predicted_bytes / 1e9:.1f} GB | "
                f"{self.limit_bytes / 1e9:.0f} GB | {'**yes**' if self.contradicts else 'no'} | "
                f"{self.source} |")


def fitted(results: Sequence[Result]) -> list[Case]:
    """The largest published batch of each network, device and number format, fullest first."""
    largest: dict[tuple[str, ...], Result] = {}
    for result in results:
        row = result.row
        key = row.graph_name, row.input, row.device, row.precision
        if key not in largest or row.batch > largest[key].row.batch:
            largest[key] = result
    cases = [Case(r.row.graph_name, r.row.device, r.row.precision, max(1, round(r.row.batch)),
                  r.memory_bytes, True, "a run of this page") for r in largest.values()]
    return sorted(cases, key=lambda case: -case.predicted_bytes / case.limit_bytes)


def unfitted() -> list[Case]:
    """The batches of ``memory.csv``, in float32."""
    with FILE.open(encoding="utf-8") as file:
        return [_unfitted(cells) for cells in csv.DictReader(file)]


def _unfitted(cells: dict[str, str]) -> Case:
    network = NETWORKS[cells["network"]](tuple(map(int, cells["input"].split("x"))))
    batch = int(cells["batch"])
    plan = make_plan(NetworkSpec.of(network), "data", 1, batch, network=network)
    found = price(network, plan, files.load("dgx1-v100"))
    said = f" ({cells['published_gb']} GB)" if cells["published_gb"] else ""
    return Case(cells["network"], cells["device"], "fp32", batch, found.memory_bytes, False,
                cells["source"] + said)


def peaks(results: Sequence[Result]) -> list[str]:
    """Predicted bytes against the peak that PyTorch allocated, where it was measured."""
    out = ["| network | format | batch | predicted | PyTorch's peak |", "| --- " * 5 + "|"]
    for result in results:
        peak = result.row.cells.get("peak_bytes")
        if peak:
            out.append(f"| {result.row.network} | {result.row.precision} | {result.row.batch:g} | "
                       f"{result.memory_bytes / 1e9:.2f} GB | {int(peak) / 1e9:.2f} GB |")
    return [*out, ""]


def lines(results: Sequence[Result]) -> list[str]:
    """The section of the page."""
    runs, others = fitted(results), unfitted()
    wrong = sum(case.contradicts for case in (*runs, *others))
    return ["## Memory", "",
            "Predicted: all arrays of a plan, without the framework's context and workspaces. Of",
            f"{len(runs)} largest published batches of a network on a device, the {SHOWN} fullest;",
            f"and batches that did not fit. Contradictions: {wrong}.", "",
            "| network | device | format | batch | fitted | predicted | device has | contradiction "
            "| source |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *(case.line for case in [*runs[:SHOWN],
                                     *(case for case in runs[SHOWN:] if case.contradicts),
                                     *others]), "",
            "On an H200, PyTorch allocates more: workspaces of its fastest kernels (in float32 up",
            "to as much again), and outputs that a plan overwrites.", "", *peaks(results)]
