"""The catalogue of processors: figures of data sheets, a file each in ``devices/``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

from hpcpar.errors import unknown
from hpcpar.machine import quantities
from hpcpar.schema import parse_toml

#: Figures that price a device.
_COMPLETE = {"memory_bytes", "flops_per_s", "bandwidth_bytes_per_s", "multiprocessors", "lanes"}
_DEVICES = resources.files("hpcpar.machine") / "devices"


def names() -> list[str]:
    """Names of the devices in the catalogue."""
    return sorted(entry.name.removesuffix(".toml") for entry in _DEVICES.iterdir())


@lru_cache(maxsize=1)
def rates() -> dict[str, float]:
    """The data sheet's float32 rate of every device (flop/s)."""
    return {name: float(str(figures(name, "")["flops_per_s"])) for name in names()}


def figures(name: str, where: str) -> dict[str, object]:
    """The data sheet of a device, as fields of `Device`.

    Raises
    ------
    InputError
        The catalogue lacks it; `where` names the file that asks for it.
    """
    if name not in names():
        raise unknown(f"{where}: device", name, names())
    file = _DEVICES / f"{name}.toml"
    data = parse_toml(file.read_bytes(), f"device {name}", "")
    plain = quantities.device(data, f"device {name}")
    return {"name": name, **plain, "peak_flops_per_s": plain["flops_per_s"]}


def with_figures(own: Mapping[str, object], where: str) -> dict[str, object]:
    """The [device] table of a machine file, with the figures of the device that it names.

    Figures of the file win; a file that has all of them needs no catalogue.
    """
    if own.keys() >= _COMPLETE or not own.get("name"):
        return dict(own)
    return {**figures(str(own["name"]), where), **own}
