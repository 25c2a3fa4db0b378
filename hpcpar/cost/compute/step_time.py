"""Seconds of a compute step: from the machine's table of measurements, else from a roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.kernel_model import kernel_s
from hpcpar.cost.compute.work import Work
from hpcpar.machine.model import Device, Machine
from hpcpar.plan.config import Floats
from hpcpar.plan.precision import OF_WORK

#: Standard deviation of the speeds of devices of one kind, over their mean. Sinha et al., "Not All
#: GPUs Are Created Equal" (SC 2022): 8% from the slowest to the fastest, of about a hundred.
SPREAD = 0.016


def slowest(device: Device, ranks: int) -> float:
    """Time of the slowest of so many devices of the catalogue, over the middle one's.

    Every iteration waits for the slowest; their speeds are taken as normally distributed (Blom's
    approximation of the largest). Rates that were fitted or measured on one machine have it.
    """
    if not device.multiprocessors:
        return 1.0
    return 1.0 + SPREAD * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def roofline_s(machine: Machine, work: Work, ranks: int = 1) -> Floats:
    """Roofline time: max(flops / rate, bytes / bandwidth) + launch (s), on the slowest of `ranks`.

    On a calibrated machine it is scaled by the factor measured for this kind of work.
    """
    factor = machine.kinds.get(work.sort, 1.0) * slowest(machine.device, ranks)
    return factor * plain_roofline_s(machine.device, work)


def plain_roofline_s(device: Device, work: Work) -> Floats:
    """The time without measured factors: of a device of the catalogue from the model of kernels."""
    busy = kernel_s(device, work) if device.multiprocessors else _roofline_s(device, work)
    return np.where(np.equal(work.flops, 0) & np.equal(work.bytes, 0), 0.0, busy)


def _roofline_s(device: Device, work: Work) -> Floats:
    """Seconds from one rate and one bandwidth."""
    rate = device.flops_per_s / (2.0 if work.dtype == "float64" else 1.0)
    if work.family == "matmul":
        rate = device.rate_of(OF_WORK[work.dtype].rates) or rate
    return work.fraction * np.maximum(work.flops / rate,
                                      work.bytes / device.bandwidth_bytes_per_s) + device.launch_s


def kinds(device: Device, works: Iterable[Work], table: Mapping[str, float]) -> dict[str, float]:
    """Measured time over roofline time for each kind of work, from the entries of a table.

    Both times are summed over all pieces of work of a kind.
    """
    sums: dict[str, tuple[float, float]] = {}
    whole = {work.key: replace(work, fraction=1.0) for work in works if work.key in table}
    for work in whole.values():
        measured, expected = sums.get(work.sort, (0.0, 0.0))
        sums[work.sort] = (measured + table[work.key],
                           expected + float(plain_roofline_s(device, work)))
    return {sort: measured / expected for sort, (measured, expected) in sorted(sums.items())
            if expected > 0}


def compute_s(machine: Machine, work: Work) -> Floats:
    """Seconds of a piece of work on one rank.

    A measured time is that of the whole operation. A step that does a part takes its fraction.
    """
    return timed(machine, work)[0]


def timed(machine: Machine, work: Work,
          ranks: int = 1) -> tuple[Floats, np.bool_ | NDArray[np.bool_]]:
    """Seconds of a piece of work on one of `ranks`, and whether they come from the machine's table.

    The table also answers for numbers of samples near a measured one.
    """
    if not machine.compute:
        return roofline_s(machine, work, ranks), np.False_
    shape = np.broadcast_shapes(*(np.shape(v) for v in (*work.x, *work.y, work.fraction)))
    if not shape:
        found = machine.measured.time(work.key)
        if found is None:
            return roofline_s(machine, work, ranks), np.bool_(machine.trusts_estimates)
        reached = found.reached or machine.trusts_estimates
        return work.fraction * found.seconds, np.bool_(reached)
    cases = [timed(machine, work.case(i), ranks) for i in range(shape[0])]
    return np.array([s for s, _ in cases]), np.array([known for _, known in cases])
