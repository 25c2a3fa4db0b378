"""External causes of slow compute: old BLAS kernels, and other processes."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

#: Vector instructions, newest first: flag in /proc/cpuinfo, name, and OpenBLAS core types whose
#: kernels use them (lower case).
_VECTORS = (
    ("avx512f", "AVX-512", ("skylakex", "cooperlake", "sapphirerapids")),
    ("avx2", "AVX2", ("haswell", "zen", "excavator")),
    ("avx", "AVX", ("sandybridge", "bulldozer", "piledriver", "steamroller")),
)
_SAMPLES, _PAUSE_S = 7, 0.01


def old_kernels(environ: Mapping[str, str], cpuinfo: str) -> str:
    """A message if the environment forces BLAS kernels older than the processor; else empty.

    Parameters
    ----------
    cpuinfo : str
        The text of ``/proc/cpuinfo``.
    """
    messages = []
    forced = environ.get("OPENBLAS_CORETYPE", "")
    has = set(re.findall(r"\w+", (re.search(r"^flags\s*:(.*)", cpuinfo, re.M) or [""] * 2)[1]))
    for flag, name, types in _VECTORS:
        if not forced or forced.lower() in types:
            break
        if flag in has:
            messages.append(f"OPENBLAS_CORETYPE={forced} forces kernels without {name}, although "
                            "this processor supports it: up to half of the matrix rate is lost")
            break
    if environ.get("OPENBLAS_L2_SIZE"):
        messages.append(f"OPENBLAS_L2_SIZE={environ['OPENBLAS_L2_SIZE']} forces block sizes for "
                        "the cache of another processor")
    return "; ".join(messages)


def running() -> int:
    """Median number of running processes on this node, sampled over 70 ms."""
    counts = []
    for _ in range(_SAMPLES):
        text = Path("/proc/stat").read_text(encoding="utf-8")
        counts.append(int(text.partition("procs_running ")[2].split()[0]))
        time.sleep(_PAUSE_S)
    return int(statistics.median(counts))


def load(processes: int, ranks: int, cores: int) -> str:
    """A message if other processes take cores from the ranks of a node; else empty.

    Parameters
    ----------
    processes : int
        Running processes on the node, including the ranks.
    ranks : int
        Ranks of this job on the node.
    """
    others = processes - ranks
    if others < 1 or processes <= cores:
        return ""
    return (f"{others} other process{'es' if others > 1 else ''} run on the {cores} cores of this "
            "node: measured times will be too long")


def slowdowns(ranks: int) -> list[str]:
    """One message for each external cause of slow compute on this node."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = (old_kernels(os.environ, cpuinfo), load(running(), ranks, os.cpu_count() or 1))
    return [line for line in lines if line]
