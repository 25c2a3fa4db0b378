"""Seconds of a compute step: measured where the machine's table has it, for this number of samples
or for others, else a roofline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcpar.cost.compute.work import Work
from hpcpar.machine.model import Device, Machine


def roofline_s(machine: Machine, work: Work) -> Any:
    """The slower of computing and moving, and a kernel's launch: max(flops / rate, bytes /
    bandwidth) + launch (s).

    On a calibrated machine, so many times that as pieces of work of its kind took there.
    """
    return machine.kinds.get(work.sort, 1.0) * plain_roofline_s(machine.device, work)


def plain_roofline_s(device: Device, work: Work) -> Any:
    """A roofline that knows no kinds of work."""
    rate = device.flops_per_s / (2.0 if work.dtype == "float64" else 1.0)
    busy = work.fraction * np.maximum(work.flops / rate,
                                      work.bytes / device.bandwidth_bytes_per_s) + device.launch_s
    return np.where(np.equal(work.flops, 0) & np.equal(work.bytes, 0), 0.0, busy)


def kinds(device: Device, works: Iterable[Work], table: Mapping[str, float]) -> dict[str, float]:
    """How many times as long as their rooflines the pieces of work of each kind take that a table
    has: all of them together.
    """
    sums: dict[str, tuple[float, float]] = {}
    for work in {work.key: replace(work, fraction=1.0) for work in works
                 if work.key in table}.values():
        measured, expected = sums.get(work.sort, (0.0, 0.0))
        sums[work.sort] = (measured + table[work.key],
                           expected + float(plain_roofline_s(device, work)))
    return {sort: measured / expected for sort, (measured, expected) in sorted(sums.items())
            if expected > 0}


def compute_s(machine: Machine, work: Work) -> Any:
    """Seconds of a piece of work on one rank.

    A calibrated time is of the whole operation that the key names; a part of it takes its fraction.
    """
    return timed(machine, work)[0]


def _calibrated(machine: Machine) -> bool:
    """True where kinds of work differ in more than the roofline."""
    return bool(machine.compute or machine.kinds)


def timed_all(machine: Machine, works: Sequence[Work]) -> list[tuple[Any, Any]]:
    """`timed` of pieces of work of one type; of a roofline all in one go."""
    if _calibrated(machine) or not works:
        return [timed(machine, work) for work in works]
    ends = np.cumsum([0,
                      *(max(getattr(work.flops, "size", 1), getattr(work.fraction, "size", 1))
                        for work in works)])
    flops, moved, fraction = np.empty((3, ends[-1]))
    places = [slice(a, b) for a, b in itertools.pairwise(ends)]
    for here, work in zip(places, works, strict=True):
        flops[here], moved[here], fraction[here] = work.flops, work.bytes, work.fraction
    seconds = roofline_s(machine, replace(works[0], flops=flops, bytes=moved, fraction=fraction))
    return [(seconds[here], np.False_) for here in places]


def timed(machine: Machine, work: Work) -> tuple[Any, Any]:
    """Seconds of a piece of work, and whether they come from the machine's table, of this number of
    samples or of some near it.
    """
    if not machine.compute:
        return roofline_s(machine, work), np.False_
    shape = np.broadcast_shapes(*(np.shape(v) for v in (*work.x, *work.y, work.fraction)))
    if not shape:
        found = machine.measured.time(work.key)
        if found is None:
            return roofline_s(machine, work), np.False_
        return work.fraction * found.seconds, np.bool_(found.reached)
    cases = [timed(machine, work.case(i)) for i in range(shape[0])]
    return np.array([s for s, _ in cases]), np.array([known for _, known in cases])
