"""Decides how long a compute step takes, by the machine's measurements or by a roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.kernel_model import kernel_s
from hpcpar.cost.compute.priced_formats import device_for
from hpcpar.cost.compute.work import Work
from hpcpar.cost.published_runs import class_factor
from hpcpar.machine.model import Device, Machine
from hpcpar.plan.config import Floats
from hpcpar.plan.precision import OF_WORK

#: Relative standard deviation of the time of an iteration among equal devices, fitted to published
#: runs on 1 and several devices (`bench/gallery/scaling.py`). Sinha et al., "Not All GPUs Are
#: Created Equal" (SC 2022), find 1.6% between devices; the rest differs between iterations.
SPREAD = 0.035


def slowest(device: Device, ranks: int, loss: float = 1.0) -> float:
    """Time on the slowest of `ranks` equal devices, relative to the median device.

    `loss` multiplies what exceeds the median.

    Every iteration waits for the slowest device. Speeds are normally distributed, and Blom's
    formula approximates their extreme. Rates fitted to or measured on a machine (devices that are
    not in the catalog) already include it.
    """
    if not device.multiprocessors:
        return 1.0
    return 1.0 + loss * SPREAD * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def roofline_s(machine: Machine, work: Work, ranks: int = 1) -> Floats:
    """Roofline time on the slowest of `ranks` (s): max(flops / rate, bytes / bandwidth) + launch.

    The measured factor of this kind of work scales it on a calibrated machine, and `class_factor`
    on others. A host's work takes its memory bandwidth.
    """
    if work.family == "host":
        assert machine.host is not None
        return work.bytes / machine.host.memory_bytes_per_s
    formats = OF_WORK[work.dtype]
    device = device_for(machine.device, formats)
    by = machine.factors
    slow = by.computing * slowest(device, ranks, by.loss / by.computing)
    factor = machine.kinds.get(work.sort, 1.0) * slow * work.fused
    if not machine.compute:
        factor *= class_factor(device, formats, work.network_kind)
    return factor * plain_roofline_s(device, work)


def plain_roofline_s(device: Device, work: Work) -> Floats:
    """Seconds without measured factors; devices of the catalog use the model of kernels."""
    busy = kernel_s(device, work) if device.multiprocessors else _roofline_s(device, work)
    return np.where(np.equal(work.flops, 0) & np.equal(work.bytes, 0), 0.0, busy)


def _roofline_s(device: Device, work: Work) -> Floats:
    """Seconds from a single rate and bandwidth."""
    rate = device.flops_per_s / (2.0 if work.dtype == "float64" else 1.0)
    if work.family == "matmul":
        rate = device.rate_of(OF_WORK[work.dtype].rates) or rate
    return work.fraction * np.maximum(work.flops / rate,
                                      work.bytes / device.bandwidth_bytes_per_s) + device.launch_s


def kinds(device: Device, works: Iterable[Work], table: Mapping[str, float]) -> dict[str, float]:
    """Ratio of measured to roofline time for each kind of work.

    Both times are sums over the works of a kind that `table` has measured.
    """
    sums: dict[str, tuple[float, float]] = {}
    whole = {work.key: replace(work, fraction=1.0) for work in works if work.key in table}
    for work in whole.values():
        measured, expected = sums.get(work.sort, (0.0, 0.0))
        sums[work.sort] = (measured + table[work.key],
                           expected + float(plain_roofline_s(device, work)))
    return {sort: measured / expected for sort, (measured, expected) in sorted(sums.items())
            if expected > 0}


def timed(machine: Machine, work: Work,
          ranks: int = 1) -> tuple[Floats, np.bool_ | NDArray[np.bool_]]:
    """Seconds of a compute step on one of `ranks`, and whether the machine's table gives them.

    The table measures whole operations; a step that computes a part takes its fraction. The table
    also covers numbers of samples near a measured one.
    """
    if not machine.compute or work.family == "host":
        return roofline_s(machine, work, ranks), np.False_
    shape = np.broadcast_shapes(*(np.shape(v) for v in (*work.x, *work.y, work.fraction)))
    if not shape:
        measured = machine.measured.time(work.key)
        if measured is None:
            return roofline_s(machine, work, ranks), np.bool_(machine.trusts_estimates)
        reached = measured.reached or machine.trusts_estimates
        seconds = machine.factors.computing * work.fraction * work.fused * measured.seconds
        return seconds, np.bool_(reached)
    cases = [timed(machine, work.case(i), ranks) for i in range(shape[0])]
    return np.array([s for s, _ in cases]), np.array([reached for _, reached in cases])
