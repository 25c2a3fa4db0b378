"""Decides how much host memory a rank's process holds besides its arrays.

The constants are growth of the resident set on x86-64 Linux with Python 3.11, NumPy 2.4, h5py 3.16
and MPICH 5.0. Pages of shared libraries count in full for each process.

* ``bench/process_memory.py`` loads one component after the other on 1, 2 and 4 ranks: interpreter
  and modules 48.9 MB; MPI 15.4, 16.2 and 17.1 MB.
* In a run of two ranks, random generators and initial weights took 7 MB, opening the data file
  13 MB (HDF5, and rows that stay in memory), and the clocks' messages another 3 MB.
* `kernels.numpy_conv` limits the work arrays of the CPU kernels to 6 + 12 MiB.

Whole runs held 92 MB (lenet5) and 145 MB (alexnet on 67 x 67) besides their arrays, while they read
images ahead as float32. The prediction is 107 and 124 MB.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan

#: Python with NumPy, h5py and this package.
INTERPRETER_BYTES = 49_000_000
#: The MPI library after its first messages.
MPI_BYTES = 19_000_000
#: Random generators, and the open data file.
SET_UP_BYTES = 20_000_000
#: Upper bound of the CPU kernels' work arrays.
KERNELS_BYTES = 18 << 20
#: Batches of images that a rank holds: one in use, two waiting, and two copies of the one that it
#: reads.
BATCHES = 5


@dataclass(frozen=True)
class ProcessMemory:
    """Host memory of a rank's process, besides the executor's arrays.

    `read_ahead_bytes` counts images in the plan's number format; stored bytes need less.
    """

    interpreter_bytes: int
    mpi_bytes: int
    set_up_bytes: int
    kernels_bytes: int
    read_ahead_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(asdict(self).values())


def process_memory(network: Network, plan: Plan) -> ProcessMemory:
    """The memory of the process that reads the most images."""
    images = network.layers[0]
    box = owned(network, images, plan.configs[images.name], plan.batch)
    read_ahead = int(box.largest_items) * BATCHES * plan.item_bytes
    return ProcessMemory(INTERPRETER_BYTES, MPI_BYTES, SET_UP_BYTES, KERNELS_BYTES, read_ahead)
