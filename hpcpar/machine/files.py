"""Machine files (TOML) and presets: reading with checks, writing whole or not at all."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import resources
from itertools import pairwise, takewhile
from typing import Any

import tomli_w

from hpcpar.errors import InputError, unknown
from hpcpar.machine.model import Device, Factors, Level, Machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PRESETS = resources.files("hpcpar.machine") / "presets"
#: Numbers that must be greater than 0; the others may be 0.
_POSITIVE = ("memory_bytes", "flops_per_s", "bandwidth_bytes_per_s", "beta_s_per_byte", "progress")


def presets() -> list[str]:
    """Names of the machines that come with the package."""
    return sorted(entry.name[:-5] for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[str, str]:
    """The text of a preset or machine file, and what to call it in messages."""
    looks_like_path = name_or_path.endswith(".toml") or os.sep in name_or_path
    if not looks_like_path:
        if name_or_path not in presets():
            raise unknown("machine", name_or_path, presets())
        return (_PRESETS
                / f"{name_or_path}.toml").read_text(encoding="utf-8"), f"preset {name_or_path}"
    try:
        with open(name_or_path, encoding="utf-8") as f:
            return f.read(), f"machine file {name_or_path}"
    except OSError as err:
        raise InputError(f"cannot read machine file {name_or_path}: {err.strerror}; presets are {', '.join(presets())}") from err
    except UnicodeDecodeError as err:
        raise InputError(f"machine file {name_or_path} is not text; write one with: hpcpar calibrate -o {name_or_path}") from err


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
    """Where the figures come from: the comment lines at the head of a preset or machine file (none
    in calibrated files).
    """
    text, _ = _read(name_or_path)
    return [line[1:].removeprefix(" ") for line in takewhile(lambda line: line.startswith("#"),
                                                             text.splitlines())]


def parse(text: str, where: str) -> Machine:
    """Read TOML text; `where` names the source in error messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise InputError(
            f"{where} is not TOML ({err}); see 'hpcpar machines local' for the format") from err
    return from_dict(data, where)


def _table(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError(f"{where} must be a table of names and values, not {type(data).__name__}")
    return data


def _text(data: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = data.get(name, default)
    if not isinstance(value, str):
        raise InputError(f"{where}: '{name}' is {'missing' if value is None else 'not a string'}; add {name} = \"...\"")
    return value


def _number(data: Mapping[str, Any], name: str, where: str, default: float | None = None) -> float:
    value = data.get(name, default)
    if value is None:
        raise InputError(f"{where}: '{name}' is missing; add {name} = <number>")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{where}: '{name}' = {value!r} is not a finite number")
    if value < 0 or (name in _POSITIVE and value == 0):
        raise InputError(f"{where}: '{name}' = {value!r} must be {'greater than' if name in _POSITIVE else 'at least'} 0")
    return float(value)


def _count(data: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    value = _number(data, name, where, default)
    if not value.is_integer():
        raise InputError(f"{where}: '{name}' = {value!r} must be a whole number")
    return int(value)


def _known(data: Mapping[str, Any], cls: type, where: str) -> None:
    names = [f.name for f in fields(cls)]
    for key in data:
        if key not in names:
            raise InputError(str(unknown("field", key, names)).replace("unknown field", f"{where}: unknown field", 1))


def from_dict(data: Any, where: str = "machine") -> Machine:
    """Check and read the content of a machine file.

    Raises
    ------
    InputError
        Naming the field that is missing, misspelt or out of range; `where` names the source in the
        message.
    """
    data = _table(data, where)
    _known(data, Machine, where)
    device = _table(data.get("device", {}), f"{where}, [device]")
    _known(device, Device, f"{where}, [device]")
    levels = data.get("levels")
    if not isinstance(levels, (list, tuple)) or not levels:
        raise InputError(f"{where}: no [[levels]]; give at least one level of the interconnect with name, ranks, alpha_s, beta_s_per_byte")
    compute, kinds = (_table(data.get(name, {}), f"{where}, [{name}]")
                      for name in ("compute", "kinds"))
    at = f"{where}, [device]"
    return Machine(
        _text(data, "name", where),
        Device(
            int(_number(device, "memory_bytes", at)),
            _number(device, "flops_per_s", at),
            _number(device, "bandwidth_bytes_per_s", at),
            _number(device, "launch_s", at, 0.0),
            _number(device, "peak_flops_per_s", at, 0.0),
            _number(device, "at_once", at, 0.0),
        ),
        _levels(levels, where),
        _number(data, "add_s_per_byte", where, 0.0),
        _number(data, "copy_s_per_byte", where, 0.0),
        min(1.0, _number(data, "overlap", where, 1.0)),
        {key: _number(compute, key, f"{where}, [compute]") for key in compute},
        _text(data, "notes", where, ""),
        dict(_table(data.get("quality", {}), f"{where}, [quality]")),
        _collectives(data.get("collectives", ()), where),
        {kind: _number(kinds, kind, f"{where}, [kinds]") for kind in kinds},
        min(1.0, _number(data, "progress", where, 1.0)),
        _pairs(data, "late", where, above=0.0),
        _pairs(data, "relay", where),
    )


def _pairs(data: Mapping[str, Any], name: str, where: str,
           above: float = -1.0) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers that are at least 0, the first of each growing, from above a number on."""
    entries = data.get(name, ())
    pairs = [entry if isinstance(entry, (list, tuple)) else ()
             for entry in entries] if isinstance(entries, (list, tuple)) else [()]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{where}: '{name}' must be pairs of seconds: {name} = [[computing, what follows from it], ...]")
    out = tuple((_number({name: a}, name, where), _number({name: b}, name, where))
                for a, b in pairs)
    if any(a >= b for a, b in pairwise([above, *(a for a, _ in out)])):
        raise InputError(f"{where}: the first seconds of the pairs of '{name}' must {'be greater than 0 and ' if above == 0 else ''}grow")
    return out


def _levels(levels: Any, where: str) -> tuple[Level, ...]:
    out: list[Level] = []
    for i, data in enumerate(levels, 1):
        at = f"{where}, level {i}"
        data = _table(data, at)
        _known(data, Level, at)
        small = _number(data, "small_alpha_s",
                        at) if data.get("small_alpha_s") is not None else None
        level = Level(
            _text(data, "name", at),
            _count(data, "ranks", at),
            _number(data, "alpha_s", at),
            _number(data, "beta_s_per_byte", at),
            small,
            _count(data, "small_bytes", at, 0),
            _number(data, "links", at, 0.0),
            _number(data, "oversubscription", at, 1.0),
        )
        if level.oversubscription < 1:
            raise InputError(f"{at} ('{level.name}'): 'oversubscription' = {level.oversubscription:g} must be at least 1; it is what the "
                             f"links below could carry over what this level can, 3 for 1:3; leave it out where the level carries all")
        if level.oversubscription > 1 and not level.links:
            raise InputError(f"{at} ('{level.name}'): 'oversubscription' = {level.oversubscription:g} divides nothing without 'links'; add "
                             f"links = <links by which one unit of the level inside is attached>")
        if out and (out[-1].ranks == 0 or (level.ranks and level.ranks % out[-1].ranks)):
            raise InputError(f"{at} ('{level.name}', {level.ranks} ranks) must hold whole units of the level inside it "
                             f"('{out[-1].name}', {out[-1].ranks} ranks); list levels from the inside out, only the last with ranks = 0")
        out.append(level)
    return tuple(out)


def _collectives(entries: Any, where: str) -> tuple[Factors, ...]:
    out = []
    for i, data in enumerate(entries, 1):
        at = f"{where}, collective {i}"
        data = _table(data, at)
        _known(data, Factors, at)
        sizes, factors = (
            tuple(_number({name: v}, name, at) for v in data.get(name, ())) for name in ("bytes", "factors")
        )
        if not sizes or len(sizes) != len(factors) or sorted(set(sizes)) != list(sizes) or min(
            *sizes, *factors) <= 0:
            raise InputError(f"{at}: 'bytes' and 'factors' must be as many numbers greater than 0, bytes growing")
        out.append(Factors(_text(data, "level", at), _text(data, "kind", at),
                           _text(data, "algorithm", at), sizes, factors))
    return tuple(out)


def to_dict(machine: Machine) -> dict[str, Any]:
    """The machine as plain data, the content of its file."""
    out = asdict(machine)
    out["levels"] = [{k: v for k, v in level.items() if v is not None} for level in out["levels"]]
    out["compute"], out["kinds"] = dict(out["compute"]), dict(out["kinds"])
    out["collectives"] = [{**c, "bytes": list(c["bytes"]), "factors": list(c["factors"])}
                          for c in out["collectives"]]
    out |= {name: [list(pair) for pair in out[name]] for name in ("late", "relay")}
    return {name: value for name, value in out.items() if value
            or name not in ("quality", "collectives", "kinds", "late", "relay")}


def save(machine: Machine, path: str) -> None:
    """Write the machine file (whole or not at all)."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "wb") as f:
            tomli_w.dump(to_dict(machine), f)
        os.replace(temporary, path)
    except OSError as err:
        raise InputError(f"cannot write machine file {path}: {err.strerror}") from err
