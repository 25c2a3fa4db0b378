"""Machine files (TOML) and presets: reading with checks, writing whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from itertools import takewhile

import tomli_w

from hpcpar.errors import InputError, unknown
from hpcpar.files import write_text
from hpcpar.machine import catalogue, quantities
from hpcpar.machine.model import Machine
from hpcpar.machine.quantities import without_units
from hpcpar.schema import convert, parse_toml, read_bytes

_PRESETS = resources.files("hpcpar.machine") / "presets"
#: Fields that earlier versions wrote and nothing reads any more.
_REMOVED = ("late", "relay")
_FORMAT = "see 'hpcpar machines local' for the format"
#: Entries that a file leaves out where they are empty.
_OPTIONAL = ("quality", "collectives", "kinds", "cores_per_node", "compute_ratios",
             "estimate_ratios", "trusts_estimates")
#: Fields that a device without the model of kernels leaves out.
_OF_KERNEL_MODEL = ("name", "multiprocessors", "lanes", "software_year")
#: Note on files that an earlier version calibrated with more ranks than cores.
OUTDATED = (
    "calibrated with more ranks than cores by an earlier version, in processor time: "
    "predictions are too short; calibrate again"
)


def presets() -> list[str]:
    """Names of the machines that come with the package."""
    return sorted(entry.name[:-5] for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[bytes, str]:
    """The text of a preset or machine file, and its name in messages."""
    looks_like_path = name_or_path.endswith(".toml") or os.sep in name_or_path
    if not looks_like_path:
        if name_or_path not in presets():
            raise unknown("machine", name_or_path, presets())
        return (_PRESETS / f"{name_or_path}.toml").read_bytes(), f"preset {name_or_path}"
    text = read_bytes(name_or_path, "machine file",
                      f"write one with: hpcpar calibrate -o, or name a preset: "
                      f"{', '.join(presets())}")
    return text, f"machine file {name_or_path}"


def load(name_or_path: str) -> Machine:
    """A preset by name, or a machine file.

    Parameters
    ----------
    name_or_path : str
        A preset's name, or a path (recognised by a separator or the ending ``.toml``).

    Raises
    ------
    InputError
        Unknown name (with the nearest one), unreadable file, not TOML, missing or wrong fields.
    """
    return parse(*_read(name_or_path))


def sources(name_or_path: str) -> list[str]:
    """The comment lines at the head of a preset or machine file: where its figures come from."""
    text, _ = _read(name_or_path)
    lines = text.decode(errors="replace").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    return [line[1:].removeprefix(" ") for line in head]


def parse(text: str | bytes, where: str) -> Machine:
    """Read TOML text; `where` names the source in error messages."""
    return from_dict(parse_toml(text, where, _FORMAT), where)


def from_dict(data: object, where: str = "machine") -> Machine:
    """Check and read the content of a machine file.

    Raises
    ------
    InputError
        Naming the field that is missing, misspelt or out of range; `where` names the source in the
        message.
    """
    if isinstance(data, Mapping):
        data = as_today(data, where)
    return convert(data, Machine, where, _FORMAT)


def as_today(data: Mapping[str, object], where: str) -> dict[str, object]:
    """The table of a machine file with plain numbers for quantities, and today's fields."""
    table = {name: value for name, value in data.items() if name not in _REMOVED}
    device, quality, levels = table.get("device"), table.get("quality", {}), table.get("levels")
    if isinstance(device, str):
        device = {"name": device}
    if isinstance(device, Mapping):
        plain = _whole(quantities.device(device, f"{where}, 'device'"))
        outdated = plain.pop("at_once", 0)
        table["device"] = catalogue.with_figures(plain, where)
        if outdated and isinstance(quality, Mapping):
            table["quality"] = {**quality, "outdated": OUTDATED}
    if isinstance(levels, list | tuple):
        table["levels"] = [
            _whole(without_units(level, quantities.LEVEL, f"{where}, 'levels', entry {number}"))
            if isinstance(level, Mapping) else level for number, level in enumerate(levels, 1)]
    collectives = table.get("collectives")
    if isinstance(collectives, list | tuple):
        # halving takes the rounds that Bruck's algorithm took
        table["collectives"] = [
            {**entry, "algorithm": "halving"}
            if isinstance(entry, Mapping) and entry.get("algorithm") == "bruck" else entry
            for entry in collectives]
    return _whole(table)


def _whole(table: Mapping[str, object]) -> dict[str, object]:
    """A table with whole numbers in place of floats like 16e9."""
    return {name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in table.items()}


def to_dict(machine: Machine) -> dict[str, object]:
    """The machine as plain data, the content of its file."""
    out: dict[str, object] = asdict(machine)
    left_out = () if machine.device.multiprocessors else _OF_KERNEL_MODEL
    out["device"] = {name: value for name, value in asdict(machine.device).items()
                     if name not in left_out and (value or name != "rates")}
    out["levels"] = [
        {name: value for name, value in asdict(level).items()
         if value is not None and (value or name != "load")}
        for level in machine.levels
    ]
    out["collectives"] = [
        asdict(c) | {"bytes": list(c.bytes), "factors": list(c.factors)}
        for c in machine.collectives
    ]
    return {name: value for name, value in out.items() if value or name not in _OPTIONAL}


def new(path: str) -> None:
    """Write a commented template of a machine file.

    Raises
    ------
    InputError
        The file exists, or cannot be written.
    """
    text = (resources.files("hpcpar.machine") / "template.toml").read_text(encoding="utf-8")
    try:
        with open(path, "x", encoding="utf-8") as f:
            f.write(text)
    except FileExistsError as err:
        raise InputError(f"{path} exists already; choose another name, or edit it") from err
    except OSError as err:
        raise InputError(f"cannot write machine file {path}: {err.strerror}") from err


def save(machine: Machine, path: str) -> None:
    """Write the machine file (whole or not at all)."""
    write_text(path, tomli_w.dumps(to_dict(machine)), "machine file")
