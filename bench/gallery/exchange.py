"""How the software of a row exchanges gradients, by what its documentation says; not fitted.

`exchange_of` gives the options of the plan and what the software adds. The same rules hold for all
rows of a framework.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.gallery.rows import Row
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import Overlap, PlanOptions, Synchronization
from hpcpar.prediction.prediction import Prediction
from hpcpar.schedule.steps import Phase

MIB = 2**20
#: Gradients that are summed at once. PyTorch's DistributedDataParallel: bucket_cap_mb; Horovod:
#: HOROVOD_FUSION_THRESHOLD; MirroredStrategy: NcclAllReduce(num_packs=1), one pack of all.
BUCKETS = {"pytorch DDP": 25 * MIB, "horovod": 64 * MIB, "MirroredStrategy": 2**40}
#: HOROVOD_CYCLE_TIME: tensors wait for the next cycle, in which all ranks agree on them. By default
#: 5 ms, and 1 ms from 0.21 on, which came out at the end of 2020.
HOROVOD_CYCLES_S = {False: 5e-3, True: 1e-3}
HOROVOD_021 = 2021.0
#: NCCL 1, in TensorFlow's contrib.nccl: one ring in the order of the bus. GPUs 3 and 4 of a DGX-1
#: have no NVLink, and no peer access between the sockets: that hop goes through host memory.
#: Typical: what 16 lanes of PCIe 3 carry beside their protocol.
HOST_BYTES_PER_S, QUAD = 10e9, 4


@dataclass(frozen=True)
class Exchange:
    """The exchange of a row.

    Attributes
    ----------
    options : PlanOptions
        What the plan has.
    cycle_s : float
        Time between the moments at which collectives may begin; 0 where they begin at once.
    bus_order : bool
        NCCL 1.
    """

    options: PlanOptions
    cycle_s: float = 0.0
    bus_order: bool = False

    def on(self, machine: Machine) -> Machine:
        """The machine as the software uses it."""
        node, *outer = machine.levels
        if not self.bus_order or node.ranks <= QUAD:
            return machine
        host = replace(node, beta_s_per_byte=1 / HOST_BYTES_PER_S, links=0.0)
        return replace(machine, levels=(replace(node, name="quad", ranks=QUAD), host, *outer))

    def waiting_s(self, found: Prediction) -> float:
        """Half a cycle for each collective that computing waits for: all but gradients, of which
        the last bucket counts.
        """
        moments = sum(step.is_comm and step.phase != Phase.GRADIENT for step in found.steps)
        return self.cycle_s / 2 * (moments + 1) if found.communication_s else 0.0


def exchange_of(row: Row) -> Exchange:
    """The exchange of a row, by its framework and the words of its column `sync`."""
    options = PlanOptions(batch_norm="sync" if synchronized_norm(row) else "local")
    if "parameter server" in row.sync:
        return Exchange(PlanOptions(**options, synchronization=Synchronization.SERVER))
    for words, bucket_bytes in BUCKETS.items():
        if words in row.sync:
            cycle_s = HOROVOD_CYCLES_S[float(row.year) >= HOROVOD_021]
            return Exchange(PlanOptions(**options, bucket_bytes=bucket_bytes),
                            cycle_s if words == "horovod" else 0.0)
    if row.sync.startswith("replicated, nccl"):
        # assumed: its kernels and the layers' kernels take turns on the multiprocessors
        return Exchange(PlanOptions(**options, overlap=Overlap.NONE, collectives="ring"),
                        bus_order=True)
    return Exchange(options)


def synchronized_norm(row: Row) -> bool:
    """True where batch normalization is synchronized: by the row's note, and in NVIDIA's
    EfficientNet for TensorFlow 2, whose configurations say "syncbn".
    """
    return ("synchronized batch norm" in row.note
            or ("TensorFlow NGC tf2" in row.framework and "efficientnet" in row.network))
