"""The memory of a rank's process beside its arrays, on the host.

The constants were measured on x86-64 Linux with Python 3.11, NumPy 2.4, h5py 3.16 and MPICH 5.0, as
growth of the resident set (pages of shared libraries count in full for each process):

* ``bench/process_memory.py`` loads one part after the other on 1, 2 and 4 ranks: interpreter and
  modules 48.9 MB; MPI 15.4, 16.2 and 17.1 MB.
* In a run of two ranks, random generators and initial weights took 7 MB, opening the data file
  13 MB (HDF5, and rows that stay in memory), and the clocks' messages another 3 MB.
* The CPU kernels' work arrays are limited by `kernels.numpy_conv` to 6 + 12 MiB.

Whole runs held 92 MB (lenet5) and 145 MB (alexnet on 67 x 67) beside their arrays while images were
read ahead as float32; predicted are 107 and 124 MB.
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
#: Work arrays of the CPU kernels, at most.
KERNELS_BYTES = 18 << 20
#: Batches of images that a rank holds: the one in use, two that wait, and one that is being read,
#: which is there twice.
BATCHES = 5


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a rank's process on the host outside of the executor's arrays.

    Attributes
    ----------
    interpreter_bytes : int
        The interpreter and its modules.
    mpi_bytes : int
        The MPI library.
    set_up_bytes : int
        Random generators and the open data file.
    kernels_bytes : int
        Work arrays of the kernels.
    read_ahead_bytes : int
        Batches of images, read ahead, of numbers as long as the plan's at most (bytes are
        shorter).
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
    """The memory of the process that reads most images."""
    images = network.layers[0]
    box = owned(network, images, plan.configs[images.name], plan.batch)
    read_ahead = int(box.largest_items) * BATCHES * plan.item_bytes
    return ProcessMemory(INTERPRETER_BYTES, MPI_BYTES, SET_UP_BYTES, KERNELS_BYTES, read_ahead)
