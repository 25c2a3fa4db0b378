"""Resident memory of a rank's process, part by part (see ``hpcpar.cost.memory.process``).

Run: ``python -m bench.process_memory`` (Linux; ranks on this node).
"""

from __future__ import annotations

import subprocess
import sys

#: Prints the resident set of rank 0 after each part was loaded (kB).
RANK = """
def resident():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
found = {"python": resident()}
from hpcpar.cli.launch import limit_threads
limit_threads()
import hpcpar.cli.run
found["modules"] = resident()
from hpcpar.comm.world import world
w = world()
w.comm.Barrier()
w.max_of_each(__import__("numpy").ones(1000))
found["MPI"] = resident()
if w.rank == 0:
    print(*(f"{name} {size}" for name, size in found.items()), sep="\\n")
"""


def main() -> int:
    """Print what each part adds (MB), for 1, 2 and 4 ranks."""
    for ranks in (1, 2, 4):
        command = ["mpiexec", "-n", str(ranks), sys.executable, "-c", RANK]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        before = 0
        for line in done.stdout.splitlines():
            name, kilobytes = line.split()
            print(f"{ranks} ranks: {name:8} + {(int(kilobytes) - before) * 1.024e-3:5.1f} MB")
            before = int(kilobytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
