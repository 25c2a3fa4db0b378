"""Slowdowns from outside the program: old BLAS kernels, and other processes."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

#: Vector instructions, newest first: flag in /proc/cpuinfo, name, and OpenBLAS core types
#: (lower case) whose kernels use them.
_VECTORS = (
    ("avx512f", "AVX-512", ("skylakex", "cooperlake", "sapphirerapids")),
    ("avx2", "AVX2", ("haswell", "zen", "excavator")),
    ("avx", "AVX", ("sandybridge", "bulldozer", "piledriver", "steamroller")),
)
_SAMPLES, _PAUSE_S = 7, 0.01


def old_kernels(environ: Mapping[str, str], cpuinfo: str) -> str:
    """How the environment forces BLAS kernels older than the processor; empty where not.

    Parameters
    ----------
    cpuinfo : str
        The text of ``/proc/cpuinfo``.
    """
    told = []
    forced = environ.get("OPENBLAS_CORETYPE", "")
    has = set(re.findall(r"\w+", (re.search(r"^flags\s*:(.*)", cpuinfo, re.M) or [""] * 2)[1]))
    for flag, name, types in _VECTORS:
        if not forced or forced.lower() in types:
            break
        if flag in has:
            told.append(f"OPENBLAS_CORETYPE={forced} forces kernels without {name}, which this "
                        "processor has: up to half of the matrix rate is lost")
            break
    if environ.get("OPENBLAS_L2_SIZE"):
        told.append(f"OPENBLAS_L2_SIZE={environ['OPENBLAS_L2_SIZE']} forces blocks for another "
                    "cache than this processor's")
    return "; ".join(told)


def running() -> int:
    """Median number of processes that run on this node, over some hundredths of a second."""
    found = []
    for _ in range(_SAMPLES):
        text = Path("/proc/stat").read_text(encoding="utf-8")
        found.append(int(text.partition("procs_running ")[2].split()[0]))
        time.sleep(_PAUSE_S)
    return int(statistics.median(found))


def load(processes: int, ranks: int, cores: int) -> str:
    """How others load a node; empty where its ranks have the cores that they need.

    Parameters
    ----------
    processes : int
        Processes that run on the node, ours included.
    ranks : int
        Our ranks on the node.
    """
    others = processes - ranks
    if others < 1 or processes <= cores:
        return ""
    return (f"{others} other process{'es' if others > 1 else ''} run on the {cores} cores of this "
            "node: times will be too long")


def slowdowns(ranks: int) -> list[str]:
    """One line for everything that slows down computing on this node."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = (old_kernels(os.environ, cpuinfo), load(running(), ranks, os.cpu_count() or 1))
    return [line for line in lines if line]
