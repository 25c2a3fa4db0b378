"""Machine files (TOML) and presets: checked reading, atomic writing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from itertools import takewhile

import tomli_w

from hpcpar.errors import InputError
from hpcpar.io.files import looks_like_file, unknown_name, write_text
from hpcpar.io.schema import convert, parse_toml, plain, read_bytes
from hpcpar.machine import catalog, quantities
from hpcpar.machine.model import DEVICE_KINDS, Machine
from hpcpar.machine.quantities import without_units

_PRESETS = resources.files("hpcpar.machine") / "presets"
#: Fields from earlier versions that nothing reads anymore.
_REMOVED = ("late", "relay")
_FORMAT = "see 'hpcpar machines local' for the format"
#: Entries that a file omits if they are empty.
_OPTIONAL = ("quality", "collectives", "kinds", "cores_per_node", "compute_ratios",
             "estimate_ratios", "trusts_estimates", "host", "anchored", "convolutions")
#: Fields of the kernel model, which other devices omit.
_KERNEL_MODEL = ("name", "multiprocessors", "lanes", "software_year")
#: Fields of a device that a file omits if they are empty.
_OPTIONAL_DEVICE = ("rates", "vendor", "kind", "sheet")
#: Note on files that an earlier version calibrated with more ranks than cores.
OUTDATED = (
    "calibrated with more ranks than cores by an earlier version, in processor time: "
    "predictions are too short; calibrate again"
)


def presets() -> list[str]:
    """Names of the package's machines."""
    return sorted(entry.name[:-5] for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[bytes, str]:
    """The text of a preset or machine file, and its name in messages."""
    if name_or_path in presets():
        return (_PRESETS / f"{name_or_path}.toml").read_bytes(), f"preset {name_or_path}"
    if not looks_like_file(name_or_path):
        if name_or_path in catalog.names():
            raise InputError(
                f"'{name_or_path}' is a device, not a machine: name it in a machine file that has "
                f"its links (device = \"{name_or_path}\"; hpcpar machines --new FILE writes one)")
        raise unknown_name("machine", name_or_path, presets())
    text = read_bytes(name_or_path, "machine file", "write one with: hpcpar calibrate -o, or name "
                      "a preset (hpcpar machines lists them)")
    return text, f"machine file {name_or_path}"


def load(name_or_path: str) -> Machine:
    """A preset by name, or a machine file by path (with a separator or a suffix).

    Raises
    ------
    InputError
        The name is unknown, the file is unreadable or not TOML, or fields are missing or wrong.
    """
    text, where = _read(name_or_path)
    return from_dict(parse_toml(text, where, _FORMAT), where)


def sources(name_or_path: str) -> list[str]:
    """Comment lines at the head of a preset or machine file, which name the figures' sources."""
    text, _ = _read(name_or_path)
    lines = text.decode(errors="replace").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    return [line[1:].removeprefix(" ") for line in head]


def from_dict(data: object, where: str = "machine") -> Machine:
    """The machine in the content of a machine file; `where` names the source in errors.

    Raises
    ------
    InputError
        A field is missing, misspelled or out of range.
    """
    if isinstance(data, Mapping):
        data = current_format(data, where)
    return convert(data, Machine, where, _FORMAT)


def current_format(data: Mapping[str, object], where: str) -> dict[str, object]:
    """A machine file's table with plain numbers for quantities and the current version's fields."""
    table = {name: value for name, value in data.items() if name not in _REMOVED}
    device, quality, levels = table.get("device"), table.get("quality", {}), table.get("levels")
    if isinstance(device, str):
        device = {"name": device}
    if isinstance(device, Mapping):
        plain = _whole(quantities.device(device, f"{where}, 'device'"))
        outdated = plain.pop("at_once", 0)
        table["device"] = device = catalog.with_figures(plain, where)
        stated = quality.get("device") if isinstance(quality, Mapping) else None
        if device.get("multiprocessors") and stated in DEVICE_KINDS:
            device.setdefault("kind", stated)
        if outdated and isinstance(quality, Mapping):
            table["quality"] = {**quality, "outdated": OUTDATED}
    if isinstance(levels, list | tuple):
        table["levels"] = [
            _whole(without_units(level, quantities.LEVEL, f"{where}, 'levels', entry {number}"))
            if isinstance(level, Mapping) else level for number, level in enumerate(levels, 1)]
    if isinstance(host := table.get("host"), Mapping):
        table["host"] = _whole(without_units(host, quantities.HOST, f"{where}, 'host'"))
    collectives = table.get("collectives")
    if isinstance(collectives, list | tuple):
        # halving has the same rounds as Bruck's algorithm had
        table["collectives"] = [
            {**entry, "algorithm": "halving"}
            if isinstance(entry, Mapping) and entry.get("algorithm") == "bruck" else entry
            for entry in collectives]
    return _whole(table)


def _whole(table: Mapping[str, object]) -> dict[str, object]:
    """A table with integers in place of whole floats like 16e9."""
    return {name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in table.items()}


def to_dict(machine: Machine) -> dict[str, object]:
    """The machine as plain data, as in its file."""
    out = plain(machine)
    omitted = () if machine.device.multiprocessors else _KERNEL_MODEL
    out["device"] = {name: value for name, value in out["device"].items()
                     if name not in omitted and (value or name not in _OPTIONAL_DEVICE)}
    out["levels"] = [
        {name: value for name, value in level.items()
         if value is not None and (value or name != "load") and (value != 1 or name != "reached")}
        for level in out["levels"]
    ]
    return {name: value for name, value in out.items() if value or name not in _OPTIONAL}


def new(path: str) -> None:
    """Write a commented template for a machine file.

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
        raise InputError(f"{path} already exists; choose another name, or edit it") from err
    except OSError as err:
        raise InputError(f"cannot write machine file {path}: {err.strerror}") from err


def save(machine: Machine, path: str) -> None:
    """Write the machine file atomically."""
    write_text(path, tomli_w.dumps(to_dict(machine)), "machine file")
