"""How the software of a row exchanges gradients: its framework, by the row's words.

The rules of each framework are the package's (`hpcpar/plan/frameworks.py`), as ``--framework``
takes them.
"""

from __future__ import annotations

from dataclasses import replace

from bench.gallery.rows import Row
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import PlanOptions, Synchronization

#: Words of a row's exchange in lower case and the framework, the first that fits.
FRAMEWORKS = (("ddp", "ddp"), ("horovod", "horovod"), ("mirroredstrategy", "mirrored"),
              ("replicated", "replicated"), ("nccl", "ddp"))
#: Horovod's defaults changed with 0.21, which came out at the end of 2020.
HOROVOD_021 = 2021.0
#: NCCL 1, in TensorFlow's contrib.nccl: one ring in the order of the bus. GPUs 3 and 4 of a DGX-1
#: have no NVLink, and no peer access between the sockets: that hop goes through host memory.
#: Typical: what 16 lanes of PCIe 3 carry beside their protocol.
HOST_BYTES_PER_S, QUAD = 10e9, 4


def options_of(row: Row) -> PlanOptions:
    """The options of the plan of a row, by its framework and the words of its column `sync`."""
    options = PlanOptions(batch_norm="sync" if synchronized_norm(row) else "local")
    if "parameter server" in row.sync:
        return PlanOptions(**options, synchronization=Synchronization.SERVER)
    name = framework_of(row)
    if row.sync.startswith("replicated, nccl"):
        options = PlanOptions(**options, collectives="ring")
    return PlanOptions(**options, framework=name) if name else options


def framework_of(row: Row) -> str:
    """The framework of a row; empty if its exchange is unknown, or nothing is exchanged."""
    name = next((name for words, name in FRAMEWORKS if words in row.sync.lower()), "")
    if row.xla:
        return "horovod-xla"
    if row.fuses:
        return "mxnet" if "mxnet" in row.framework.lower() else "paddle"
    if name != "horovod":
        return name
    return "horovod" if float(row.year) >= HOROVOD_021 else "horovod-0.20"


def machine_as_used(row: Row, machine: Machine) -> Machine:
    """The machine as the row's software uses it: NCCL 1 goes through the host."""
    node, *outer = machine.levels
    if not row.sync.startswith("replicated, nccl") or node.ranks <= QUAD:
        return machine
    host = replace(node, beta_s_per_byte=1 / HOST_BYTES_PER_S, reached=1.0, links=0.0)
    return replace(machine, levels=(replace(node, name="quad", ranks=QUAD), host, *outer))


def synchronized_norm(row: Row) -> bool:
    """True where batch normalization is synchronized: by the row's note, and in NVIDIA's
    EfficientNet for TensorFlow 2, whose configurations say "syncbn".
    """
    return ("synchronized batch norm" in row.note
            or ("TensorFlow NGC tf2" in row.framework and "efficientnet" in row.network))
