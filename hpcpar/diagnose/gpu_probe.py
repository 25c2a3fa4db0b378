"""``python -m hpcpar.diagnose.gpu_probe``: this node's GPUs, and whether MPI accepts their buffers.

The probe runs in a child process, which an MPI library without GPU support may crash and a broken
driver may hang. The child prints a line of JSON about the GPUs, and a second line after MPI has
moved a device buffer.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import numpy as np

from hpcpar.process.child import command
from hpcpar.process.launchers import PREFIXES

_ITEMS = 1 << 16


def probe(timeout_s: float = 60.0) -> dict[str, Any]:
    """Probes the GPUs in a child process.

    Returns
    -------
    dict
        ``cupy``, ``devices``, ``nccl``, ``direct`` (whether MPI accepts device buffers), and
        ``fault`` (why the answer is incomplete, or empty).
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES)}
    result: dict[str, Any] = {"cupy": "", "devices": [], "nccl": "", "direct": False, "fault": ""}
    try:
        done = subprocess.run(command(__name__), capture_output=True, text=True,
                              timeout=timeout_s, env=env)
        text = done.stdout
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode != 0:
            result["fault"] = f"exit status {done.returncode}" + (f": {last}" if last else "")
    except subprocess.TimeoutExpired as err:
        text = err.stdout.decode() if isinstance(err.stdout, bytes) else err.stdout or ""
        result["fault"] = f"no answer in {timeout_s:g} s"
    for line in text.splitlines():
        if line.startswith("{"):
            result |= json.loads(line)
    return result


def main() -> None:
    """The probe, in the child process."""
    from hpcpar.kernels.cupy_environment import environment

    gpus = environment()
    print(json.dumps(gpus), flush=True)
    if not gpus["devices"]:
        return
    from hpcpar.comm.world import World
    from hpcpar.kernels import backend

    gpu, comm = backend("gpu"), World().comm
    values = np.arange(_ITEMS, dtype=np.float32)
    sent, received = gpu.empty((_ITEMS,), "float32"), gpu.zeros((_ITEMS,), "float32")
    gpu.to_device(values, sent)
    gpu.synchronize()
    comm.Sendrecv(sent, comm.rank, 0, received, comm.rank, 0)
    result = np.zeros_like(values)
    gpu.to_host(received, result)
    print(json.dumps({"direct": bool((result == values).all())}), flush=True)


if __name__ == "__main__":
    main()
