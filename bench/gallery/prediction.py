"""The prediction of a published run from the catalog of devices and the presets alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from bench.gallery.exchange import machine_as_used, options_of
from bench.gallery.networks import NETWORKS
from bench.gallery.rows import Row
from bench.gallery.series import levels
from hpcpar.machine import catalog, files
from hpcpar.machine.model import Device, Machine
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.plan import Plan, PlanOptions, make_plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.prediction.price import price

#: Machines of the rows and the presets whose levels they have.
PRESETS = {"dlperf-4x8xv100-ib100": "dgx1-v100", "gce-k80": "p2.8xlarge",
           "ec2-p2.8xlarge-cluster": "p2.8xlarge",
           "dgx1-v100 + 4x100 Gb/s InfiniBand": "dgx1-v100", "abci": "abci-v100",
           "dgx-a100 (selene)": "dgx-a100", "eos": "dgx-h100"}
#: Adapters of a node where the row's machine has fewer than its preset.
ADAPTERS = {"dlperf-4x8xv100-ib100": 1}
#: Machines of processors that the model of kernels does not fit: their presets have one rate.
OWN_RATE = ("fugaku", "cori-knl")


@dataclass(frozen=True)
class Result:
    """A row and its prediction, for each device."""

    row: Row
    predicted_s: float
    memory_bytes: int = 0

    @property
    def log(self) -> float:
        """Logarithm of predicted over measured."""
        return math.log(self.predicted_s / self.row.iteration_s)


def unpredictable(row: Row) -> str:
    """Why a row has no prediction; empty where it has one."""
    if row.precision not in PRECISIONS:
        return f"number format {row.precision}"
    if row.graph_name not in NETWORKS:
        return f"network {row.network} is not written down"
    if row.device not in catalog.names():
        return f"device {row.device} is not in the catalog"
    if row.devices == "1":
        return ""
    if row.id.startswith("series-"):
        return "" if row.machine else "interconnect is not written down"
    if PRESETS.get(row.machine, row.machine) not in files.presets():
        return f"machine {row.machine} has no preset"
    return ""


def machine_of(row: Row) -> Machine:
    """The row's machine: its preset's levels, its own device and the library of its time."""
    # one device sends nothing: any levels do
    if row.id.startswith("series-"):
        machine = replace(files.load("dgx1-v100"), host=None)
        known = levels(row.machine) if row.machine else machine.levels
        return _with_device(replace(machine, levels=known), row)
    preset = PRESETS.get(row.machine, row.machine)
    machine = files.load(preset if preset in files.presets() else "dgx1-v100")
    if row.machine in ADAPTERS:
        *inner, network = machine.levels
        machine = replace(machine, levels=(*inner, replace(network, links=ADAPTERS[row.machine])))
    if preset in OWN_RATE:
        return machine
    return _with_device(machine, row)


def _with_device(machine: Machine, row: Row) -> Machine:
    device = Device(**catalog.figures(row.device, row.id))  # type: ignore[arg-type]
    return replace(machine, device=replace(device, software_year=row.library_year))


@cache
def graph(name: str, shape: str) -> Network:
    return NETWORKS[name](tuple(map(int, shape.split("x"))))


def case(row: Row) -> tuple[Network, Plan, Machine]:
    """The network, plan and machine of a row."""
    network, ranks = graph(row.graph_name, row.input), int(row.devices)
    machine = machine_as_used(row, machine_of(row))
    batch = round(row.batch * ranks)
    # devices that share a sample cut its image
    strategy = "data" if row.batch >= 1 else f"ds:{batch}x{ranks // batch}"
    options: PlanOptions = {**options_of(row), "precision": row.precision}
    plan = make_plan(NetworkSpec.of(network), strategy, ranks, batch, network=network, **options)
    return network, plan, machine


def predict(row: Row) -> Result:
    """The time of an iteration, and the memory."""
    network, plan, machine = case(row)
    found = price(network, plan, machine, training=not row.forward_only)
    update_s = 0.0 if row.updates else found.phases["update"]["compute_s"]
    return Result(row, found.iteration_s - update_s, found.memory_bytes)
