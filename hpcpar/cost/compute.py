"""Seconds of a compute step: measured where the machine's table has it, else a roofline."""

from __future__ import annotations

from hpcpar.cost.work import Work
from hpcpar.machine.model import Machine


def roofline_s(machine: Machine, work: Work) -> float:
    """The slower of computing and moving, and a kernel's launch: max(flops / rate, bytes / bandwidth) + launch (s)."""
    device = machine.device
    rate = device.flops_per_s / (2.0 if work.key.endswith("float64") else 1.0)
    if work.flops == 0 and work.bytes == 0:
        return 0.0
    return work.fraction * max(work.flops / rate, work.bytes / device.bandwidth_bytes_per_s) + device.launch_s


def compute_s(machine: Machine, work: Work) -> float:
    """Seconds of a piece of work on one rank.

    A calibrated time is of the whole operation that the key names; a part of it takes its fraction.
    """
    measured = machine.compute.get(work.key)
    return roofline_s(machine, work) if measured is None else work.fraction * measured
