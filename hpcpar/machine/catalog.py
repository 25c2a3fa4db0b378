"""The catalog of devices: data sheet figures, one file per device in ``devices/``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

from hpcpar.errors import unknown
from hpcpar.io.schema import parse_toml
from hpcpar.machine import quantities
from hpcpar.machine.model import Machine

#: Figures needed to price a device.
_COMPLETE = {"memory_bytes", "flops_per_s", "bandwidth_bytes_per_s", "multiprocessors", "lanes"}
#: Relative difference below which two rates count as equal.
SAME_RATE = 0.01
_DEVICES = resources.files("hpcpar.machine") / "devices"


def names() -> list[str]:
    """Names of the devices in the catalog."""
    return sorted(entry.name.removesuffix(".toml") for entry in _DEVICES.iterdir())


@lru_cache(maxsize=1)
def rates() -> dict[str, float]:
    """Data sheet float32 rate of every device (flop/s)."""
    return {name: float(str(figures(name, "")["flops_per_s"])) for name in names()}


def figures(name: str, where: str) -> dict[str, object]:
    """The data sheet of a device, as fields of `Device`.

    Raises
    ------
    InputError
        The catalog lacks the device; `where` names the file that refers to it.
    """
    if name not in names():
        raise unknown(f"{where}: device", name, names())
    file = _DEVICES / f"{name}.toml"
    data = parse_toml(file.read_bytes(), f"device {name}", "")
    plain = quantities.device(data, f"device {name}")
    return {"name": name, **plain, "peak_flops_per_s": plain["flops_per_s"]}


def with_figures(table: Mapping[str, object], where: str) -> dict[str, object]:
    """The [device] table of a machine file, completed from the catalog if it names a device.

    The file's own figures take precedence; with all of them, no catalog entry is needed.
    """
    if table.keys() >= _COMPLETE or not table.get("name"):
        return dict(table)
    return {**figures(str(table["name"]), where), **table}


def sheets_of_rate(machine: Machine) -> list[str]:
    """Data sheets with the machine's rate as their peak; none if anything was measured."""
    device = machine.device
    if device.multiprocessors or machine.compute or "origin" in machine.quality:
        return []
    peaks = {"its own": device.peak_flops_per_s} if device.peak_flops_per_s else {}
    known = rates()
    peaks |= {device.name: known[device.name]} if device.name in known else known
    return [name for name, peak in peaks.items() if abs(device.flops_per_s / peak - 1) < SAME_RATE]


def peak_warning(machine: Machine) -> str:
    """A warning, with the remedy, if the rate is a data sheet's peak; else empty."""
    sheets = sheets_of_rate(machine)
    if not sheets:
        return ""
    named = [name for name in sheets if name in names()]
    remedy = f"name the device (device = \"{named[0]}\"), " if named else ""
    return (f"warning: the rate of {machine.name}, {machine.device.flops_per_s / 1e12:.4g} Tflop/s,"
            f" is the peak of a data sheet ({', '.join(sheets)}), which few networks reach: "
            f"predictions are too fast; {remedy}give the rate that a run reached, or measure it "
            "with: hpcpar calibrate")
