"""Machine files (TOML) and presets: reading with checks, writing whole or not at all."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import resources
from itertools import takewhile

import tomli_w

from hpcpar.errors import InputError, unknown
from hpcpar.files import write_text
from hpcpar.machine import quantities
from hpcpar.machine.model import Device, Factors, Level, Machine
from hpcpar.machine.quantities import without_units

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PRESETS = resources.files("hpcpar.machine") / "presets"
#: Numbers that must be greater than 0; the others may be 0.
_POSITIVE = ("memory_bytes", "flops_per_s", "bandwidth_bytes_per_s", "beta_s_per_byte", "progress")
#: Fields that earlier versions wrote and nothing reads any more: of a machine, and of a device.
_REMOVED, _REMOVED_OF_DEVICE = ("late", "relay"), ("at_once",)
#: Entries that a file leaves out where they are empty.
_OPTIONAL = ("quality", "collectives", "kinds", "cores_per_node")
#: Note on files that an earlier version calibrated with more ranks than cores.
OUTDATED = (
    "calibrated with more ranks than cores by an earlier version, in processor time: "
    "predictions are too short; calibrate again"
)


def presets() -> list[str]:
    """Names of the machines that come with the package."""
    return sorted(entry.name[:-5] for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[str, str]:
    """The text of a preset or machine file, and its name in messages."""
    looks_like_path = name_or_path.endswith(".toml") or os.sep in name_or_path
    if not looks_like_path:
        if name_or_path not in presets():
            raise unknown("machine", name_or_path, presets())
        preset = _PRESETS / f"{name_or_path}.toml"
        return preset.read_text(encoding="utf-8"), f"preset {name_or_path}"
    try:
        with open(name_or_path, encoding="utf-8") as f:
            return f.read(), f"machine file {name_or_path}"
    except OSError as err:
        raise InputError(
            f"cannot read machine file {name_or_path}: {err.strerror}; "
            f"presets are {', '.join(presets())}"
        ) from err
    except UnicodeDecodeError as err:
        raise InputError(
            f"machine file {name_or_path} is not text; "
            f"write one with: hpcpar calibrate -o {name_or_path}"
        ) from err


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
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return [line[1:].removeprefix(" ") for line in head]


def parse(text: str, where: str) -> Machine:
    """Read TOML text; `where` names the source in error messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise InputError(
            f"{where} is not TOML ({err}); see 'hpcpar machines local' for the format") from err
    return from_dict(data, where)


def _table(data: object, where: str) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise InputError(f"{where} must be a table of names and values, not {type(data).__name__}")
    return data


def _list(data: Mapping[str, object], name: str, where: str) -> list[object]:
    value = data.get(name, ())
    if not isinstance(value, list | tuple):
        raise InputError(f"{where}: '{name}' = {value!r} is not an array")
    return list(value)


def _text(data: Mapping[str, object], name: str, where: str, default: str | None = None) -> str:
    value = data.get(name, default)
    if not isinstance(value, str):
        fault = "missing" if value is None else "not a string"
        raise InputError(f"{where}: '{name}' is {fault}; add {name} = \"...\"")
    return value


def _number(
    data: Mapping[str, object], name: str, where: str, default: float | None = None
) -> float:
    value = data.get(name, default)
    if value is None:
        raise InputError(f"{where}: '{name}' is missing; add {name} = <number>")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: '{name}' = {value!r} is not a finite number")
    if value < 0 or (name in _POSITIVE and value == 0):
        least = "greater than" if name in _POSITIVE else "at least"
        raise InputError(f"{where}: '{name}' = {value!r} must be {least} 0")
    return float(value)


def _count(data: Mapping[str, object], name: str, where: str, default: int | None = None) -> int:
    value = _number(data, name, where, default)
    if not value.is_integer():
        raise InputError(f"{where}: '{name}' = {value!r} must be a whole number")
    return int(value)


def _numbers(data: Mapping[str, object], name: str, where: str) -> tuple[float, ...]:
    return tuple(_number({name: value}, name, where) for value in _list(data, name, where))


def _numbers_by_name(data: Mapping[str, object], name: str, where: str) -> dict[str, float]:
    """A table of numbers."""
    where = f"{where}, [{name}]"
    table = _table(data.get(name, {}), where)
    return {key: _number(table, key, where) for key in table}


def _known(
    data: Mapping[str, object], cls: type, where: str, removed: tuple[str, ...] = ()
) -> None:
    """Check that `cls` has the fields, or an earlier version had."""
    names = [f.name for f in fields(cls)]
    for key in data:
        if key not in (*names, *removed):
            fault = str(unknown("field", key, names))
            raise InputError(fault.replace("unknown field", f"{where}: unknown field", 1))


def from_dict(data: object, where: str = "machine") -> Machine:
    """Check and read the content of a machine file.

    Raises
    ------
    InputError
        Naming the field that is missing, misspelt or out of range; `where` names the source in the
        message.
    """
    data = _table(data, where)
    _known(data, Machine, where, _REMOVED)
    device = _table(data.get("device", {}), f"{where}, [device]")
    quality = dict(_table(data.get("quality", {}), f"{where}, [quality]"))
    if device.get("at_once"):
        quality["outdated"] = OUTDATED
    return Machine(
        name=_text(data, "name", where),
        device=_device(device, f"{where}, [device]"),
        levels=_levels(_list(data, "levels", where), where),
        add_s_per_byte=_number(data, "add_s_per_byte", where, 0.0),
        copy_s_per_byte=_number(data, "copy_s_per_byte", where, 0.0),
        overlap=min(1.0, _number(data, "overlap", where, 1.0)),
        compute=_numbers_by_name(data, "compute", where),
        notes=_text(data, "notes", where, ""),
        quality=quality,
        collectives=_collectives(_list(data, "collectives", where), where),
        kinds=_numbers_by_name(data, "kinds", where),
        progress=min(1.0, _number(data, "progress", where, 1.0)),
        cores_per_node=_count(data, "cores_per_node", where, 0),
        processor=_text(data, "processor", where, "rank"),
    )


def _device(data: Mapping[str, object], where: str) -> Device:
    data = without_units(data, quantities.DEVICE, where)
    _known(data, Device, where, _REMOVED_OF_DEVICE)
    return Device(
        int(_number(data, "memory_bytes", where)),
        _number(data, "flops_per_s", where),
        _number(data, "bandwidth_bytes_per_s", where),
        _number(data, "launch_s", where, 0.0),
        _number(data, "peak_flops_per_s", where, 0.0),
    )


def _levels(entries: list[object], where: str) -> tuple[Level, ...]:
    if not entries:
        raise InputError(
            f"{where}: no [[levels]]; give at least one level of the interconnect "
            "with name, ranks, alpha_s, beta_s_per_byte"
        )
    out: list[Level] = []
    for i, entry in enumerate(entries, 1):
        at = f"{where}, level {i}"
        level = _level(_table(entry, at), at)
        at = f"{at} ('{level.name}'"
        if level.oversubscription < 1:
            raise InputError(
                f"{at}): 'oversubscription' = {level.oversubscription:g} must be at least 1; "
                "it is what the links below could carry over what this level can, 3 for 1:3; "
                "leave it out where the level carries all"
            )
        if level.oversubscription > 1 and not level.links:
            raise InputError(
                f"{at}): 'oversubscription' = {level.oversubscription:g} divides nothing without "
                "'links'; add links = <links by which one unit of the level inside is attached>"
            )
        inner = out[-1] if out else None
        if inner and (inner.ranks == 0 or (level.ranks and level.ranks % inner.ranks)):
            raise InputError(
                f"{at}, {level.ranks} ranks) must hold whole units of the level inside it "
                f"('{inner.name}', {inner.ranks} ranks); list levels from the inside out, "
                "only the last with ranks = 0"
            )
        out.append(level)
    return tuple(out)


def _level(data: Mapping[str, object], where: str) -> Level:
    data = without_units(data, quantities.LEVEL, where)
    _known(data, Level, where)
    has_small = data.get("small_alpha_s") is not None
    return Level(
        _text(data, "name", where),
        _count(data, "ranks", where),
        _number(data, "alpha_s", where),
        _number(data, "beta_s_per_byte", where),
        _number(data, "small_alpha_s", where) if has_small else None,
        _count(data, "small_bytes", where, 0),
        _number(data, "links", where, 0.0),
        _number(data, "oversubscription", where, 1.0),
    )


def _collectives(entries: list[object], where: str) -> tuple[Factors, ...]:
    out = []
    for i, entry in enumerate(entries, 1):
        at = f"{where}, collective {i}"
        data = _table(entry, at)
        _known(data, Factors, at)
        sizes, factors = _numbers(data, "bytes", at), _numbers(data, "factors", at)
        growing = list(sizes) == sorted(set(sizes))
        if not sizes or len(sizes) != len(factors) or not growing or min(*sizes, *factors) <= 0:
            raise InputError(
                f"{at}: 'bytes' and 'factors' must be equally many numbers greater than 0, "
                "bytes growing"
            )
        level, kind, algorithm = (_text(data, name, at) for name in ("level", "kind", "algorithm"))
        out.append(Factors(level, kind, algorithm, sizes, factors))
    return tuple(out)


def to_dict(machine: Machine) -> dict[str, object]:
    """The machine as plain data, the content of its file."""
    out: dict[str, object] = asdict(machine)
    out["levels"] = [
        {name: value for name, value in asdict(level).items() if value is not None}
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
