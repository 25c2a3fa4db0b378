"""Detects machine files whose rate is a data sheet's peak, which few networks reach."""

from __future__ import annotations

from hpcpar.machine import catalog
from hpcpar.machine.model import Machine

#: Relative difference below which two rates count as equal.
SAME = 0.01


def sheets_of_rate(machine: Machine) -> list[str]:
    """Data sheets with the machine's rate as their peak; none if anything was measured."""
    device = machine.device
    if device.multiprocessors or machine.compute or "origin" in machine.quality:
        return []
    peaks = {"its own": device.peak_flops_per_s} if device.peak_flops_per_s else {}
    known = catalog.rates()
    peaks |= {device.name: known[device.name]} if device.name in known else known
    return [name for name, peak in peaks.items() if abs(device.flops_per_s / peak - 1) < SAME]


def peak_warning(machine: Machine) -> str:
    """A warning, with the remedy, if the rate is a data sheet's peak; else empty."""
    sheets = sheets_of_rate(machine)
    if not sheets:
        return ""
    named = [name for name in sheets if name in catalog.names()]
    remedy = f"name the device (device = \"{named[0]}\"), " if named else ""
    return (f"warning: the rate of {machine.name}, {machine.device.flops_per_s / 1e12:.4g} Tflop/s,"
            f" is the peak of a data sheet ({', '.join(sheets)}), which few networks reach: "
            f"predictions are too fast; {remedy}give the rate that a run reached, or measure it "
            "with: hpcpar calibrate")
