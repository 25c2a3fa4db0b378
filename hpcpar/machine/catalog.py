"""The catalog of devices: data sheet figures, one file per device in ``devices/``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources

from hpcpar.errors import InputError
from hpcpar.io.schema import parse_toml
from hpcpar.machine import quantities
from hpcpar.machine.model import Device, Machine

#: Figures needed to price a device.
_COMPLETE = {"memory_bytes", "flops_per_s", "bandwidth_bytes_per_s", "multiprocessors", "lanes"}
#: Lines of a data sheet that stand for a device in a machine file.
SHEET = ("vendor", "kind", "memory", "rate", "bandwidth", "multiprocessors", "lanes")
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
        raise _absent(name, where)
    file = _DEVICES / f"{name}.toml"
    data = parse_toml(file.read_bytes(), f"device {name}", "")
    plain = quantities.device(data, f"device {name}")
    return {"name": name, **plain, "peak_flops_per_s": plain["flops_per_s"]}


@cache
def device(name: str, where: str = "device") -> Device:
    """A device of the catalog."""
    return Device(**figures(name, where))  # type: ignore[arg-type]


def _letters(name: str) -> str:
    """Letters and digits of a name, without its maker: a100sxm80gb."""
    return re.sub(r"nvidia|[^a-z0-9]", "", name.lower())


def _absent(name: str, where: str) -> InputError:
    """The error for a device that the catalog lacks."""
    short, wanted = {_letters(known): known for known in names()}, _letters(name)
    alike = [word for word in short if wanted and (wanted in word or wanted.endswith(word))]
    alike = alike or difflib.get_close_matches(wanted, short, n=1, cutoff=0.8)
    hint = f"; did you mean {' or '.join(short[word] for word in alike[:4])}?" if alike else ""
    return InputError(
        f"{where}: device '{name}' is not in the catalog (hpcpar machines lists it){hint}; else "
        f"give {', '.join(SHEET[:-1])} and {SHEET[-1]} of its data sheet in [device], as the "
        "template that hpcpar machines --new FILE writes")


def with_figures(table: Mapping[str, object], where: str) -> dict[str, object]:
    """The [device] table of a machine file, completed from the catalog if it names a device.

    The file's own figures take precedence; with all of them, no catalog entry is needed.
    """
    name = str(table.get("name") or "")
    if not name or (table.keys() >= _COMPLETE and name not in names()):
        return dict(table)
    return {**figures(name, where), **table}


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
