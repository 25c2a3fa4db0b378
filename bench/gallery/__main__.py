"""Predict the published training runs from the catalogue of devices and the presets alone.

Usage: python -m bench.gallery [-o docs/results/gallery.md]

It predicts every float32 row of ``runs.csv`` that it can, prints how far it is off by device,
network and number of devices, and the twenty worst rows, and writes the page. Under 10 minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from bench.gallery.networks import NETWORKS
from bench.gallery.rows import Row, runs
from hpcpar.machine import catalogue, files
from hpcpar.machine.model import Device, Machine
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.plan import Synchronisation, make_plan
from hpcpar.simulation.price_plan import price

#: Machines of the rows and the presets whose levels they have.
PRESETS = {"dlperf-4x8xv100-ib100": "dgx1-v100", "gce-k80": "p2.8xlarge",
           "ec2-p2.8xlarge-cluster": "p2.8xlarge",
           "dgx1-v100 + 4x100 Gb/s InfiniBand": "dgx1-v100", "abci": "abci-v100"}
#: Adapters of a node where the row's machine has fewer than its preset.
ADAPTERS = {"dlperf-4x8xv100-ib100": 1}
#: Machines of processors that the model of kernels does not fit: their presets have one rate.
OWN_RATE = ("fugaku", "cori-knl")
#: Of the rows of one device, by ``python -m bench.fit_kernels --leave device`` and ``network``.
LEFT_OUT = (
    "The model of kernels is fitted to the rows of one device, 266 of them, and to 1,935 passes of",
    "convolutions and 1,120 products of DeepBench. What it predicts of what it was not fitted to:",
    "",
    "| left out in turn | accuracy | median ratio | within 20% | within a factor of 2 |",
    "| --- | --- | --- | --- | --- |",
    "| nothing | 88% | 1.00 | 82% | 100% |",
    "| each device | 85% | 0.98 | 74% | 100% |",
    "| each network | 85% | 1.00 | 74% | 100% |",
    "| each device, of convolutions | 71% | 1.02 | 44% | 93% |",
    "| each device, of products | 70% | 1.01 | 38% | 93% |",
)


@dataclass(frozen=True)
class Result:
    """A row and its prediction."""

    row: Row
    predicted_s: float

    @property
    def log(self) -> float:
        """Logarithm of predicted over measured."""
        return math.log(self.predicted_s / self.row.iteration_s)


def unpredictable(row: Row) -> str:
    """Why a row has no prediction; empty where it has one."""
    if row.precision != "fp32":
        return f"number format {row.precision}"
    if row.graph_name not in NETWORKS:
        return f"network {row.network} is not written down"
    if row.device not in catalogue.names():
        return f"device {row.device} is not in the catalogue"
    if row.batch < 1:
        return "several devices share a sample"
    if row.devices != "1" and PRESETS.get(row.machine, row.machine) not in files.presets():
        return f"machine {row.machine} has no preset"
    return ""


def machine_of(row: Row) -> Machine:
    """The row's machine: its preset's levels, its own device and the library of its time."""
    preset = PRESETS.get(row.machine, row.machine)
    machine = files.load(preset if preset in files.presets() else "dgx1-v100")
    if row.machine in ADAPTERS:
        *inner, network = machine.levels
        machine = replace(machine, levels=(*inner, replace(network, links=ADAPTERS[row.machine])))
    if preset in OWN_RATE:
        return machine
    device = Device(**catalogue.figures(row.device, row.id))  # type: ignore[arg-type]
    return replace(machine, device=replace(device, software_year=row.library_year))


@cache
def _graph(name: str, shape: str) -> Network:
    return NETWORKS[name](tuple(map(int, shape.split("x"))))


def predict(row: Row) -> Result:
    """The time of an iteration."""
    network, ranks = _graph(row.graph_name, row.input), int(row.devices)
    return Result(row, _seconds(row, network, ranks))


def _seconds(row: Row, network: Network, ranks: int) -> float:
    batch = round(row.batch * ranks)
    server = "parameter server" in row.sync
    plan = make_plan(
        NetworkSpec.of(network), "data", ranks, batch, network=network, batch_norm="local",
        synchronisation=Synchronisation.SERVER if server else Synchronisation.ALLREDUCE)
    found = price(network, plan, machine_of(row))
    update_s = 0.0 if row.updates else found.phases["update"]["compute_s"]
    return found.iteration_s - update_s


def line(label: str, results: Iterable[Result]) -> str:
    """A row of a table: count, mean accuracy, median ratio, shares within 20% and a factor of 2."""
    logs = np.array([result.log for result in results])
    off = np.abs(np.exp(logs) - 1)
    return (f"| {label} | {len(logs)} | {100 * np.mean(1 - np.minimum(off, 1)):.0f}% | "
            f"{math.exp(np.median(logs)):.2f} | {100 * np.mean(off <= 0.2):.0f}% | "
            f"{100 * np.mean(np.abs(logs) <= math.log(2)):.0f}% |")


def table(title: str, of: Callable[[Result], str], results: list[Result]) -> list[str]:
    """A table with a row for each group."""
    out = [f"| {title} | rows | accuracy | median ratio | within 20% | within a factor of 2 |",
           "| --- | --- | --- | --- | --- | --- |", line("all", results)]
    groups = sorted({of(result) for result in results},
                    key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    return [*out, *(line(name, [r for r in results if of(r) == name]) for name in groups), ""]


def worst(results: list[Result]) -> list[str]:
    """The twenty rows that are furthest off."""
    out = ["| predicted / measured | network | device | devices | batch | framework | measured | "
           "reason |",
           "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for result in sorted(results, key=lambda r: -abs(r.log))[:20]:
        row = result.row
        out.append(f"| {math.exp(result.log):.2f} | {row.network} | {row.device} | {row.devices} | "
                   f"{row.batch:g} | {row.framework} | {row.iteration_ms} ms | {row.reason} |")
    return [*out, ""]


def page(counted: list[Result], shown: list[Result], left: dict[str, int]) -> str:
    """The page, as Markdown."""
    one = [r for r in counted if r.row.devices == "1"]
    many = [r for r in counted if r.row.devices != "1"]
    out = ["# Other people's machines", "",
           "Published training runs in float32 (data and sources: `bench/gallery/README.md`),",
           "predicted from data sheets alone: devices of the catalogue, levels of the presets, no",
           "calibration. Written by `python -m bench.gallery`. Accuracy is the mean of",
           "1 - |predicted / measured - 1|, at least 0.", "",
           *LEFT_OUT, "",
           "## One device", "", *table("device", lambda r: r.row.device, one),
           *table("network", lambda r: r.row.network, one),
           "## Several devices", "", *table("devices", lambda r: r.row.devices, many),
           *table("machine", lambda r: r.row.machine, many),
           *table("exchange", lambda r: r.row.sync, many),
           "## The twenty worst", "", *worst(counted), "## Not counted", "",
           "| why | rows |", "| --- | --- |"]
    out += [f"| {why} | {count} |" for why, count in sorted(left.items(), key=lambda x: -x[1])]
    out += ["", "Predicted, but not counted:", "",
            *table("why", lambda r: r.row.doubt, shown)]
    return "\n".join(out) + "\n"


def main() -> None:
    """Predict, print, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", default="docs/results/gallery.md")
    args = parser.parse_args()
    results, left = [], {}
    for row in runs():
        why = unpredictable(row)
        if why:
            left[why] = left.get(why, 0) + 1
        else:
            results.append(predict(row))
    text = page([r for r in results if not r.row.doubt], [r for r in results if r.row.doubt], left)
    print(text)
    with open(args.o, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
