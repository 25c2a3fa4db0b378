"""Site defaults: ``~/.config/hpcpar.toml`` names the machine and the Slurm options once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcpar.errors import InputError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Names another file; empty for none.
VARIABLE = "HPCPAR_CONFIG"
_KNOWN = ("machine", "slurm")
#: The machine of a sweep whose folder holds one.
BESIDE = "machine.toml"


@dataclass(frozen=True)
class Site:
    """Site defaults.

    Attributes
    ----------
    path : str
        The file; empty where there is none.
    machine : str
        Preset or machine file; empty for none. Paths are relative to the file.
    slurm : mapping
        Slurm options, as in the file of ``sweep --slurm``.
    """

    path: str = ""
    machine: str = ""
    slurm: Mapping[str, object] = field(default_factory=dict)


def config_path() -> str:
    """The path of the file of site defaults, whether it exists or not; empty for none."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.environ.get(VARIABLE, os.path.join(folder, "hpcpar.toml"))


def read() -> Site:
    """The site defaults; none where there is no file.

    Raises
    ------
    InputError
        The file cannot be read, or has an unknown or wrong entry.
    """
    path = config_path()
    try:
        with open(path, "rb") as f:
            data = tomllib.load(f)
    except FileNotFoundError as err:
        if os.environ.get(VARIABLE):
            raise InputError(f"no file {path}, which {VARIABLE} names; write it, or unset "
                             f"{VARIABLE}") from err
        return Site()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise InputError(f"cannot read site defaults {path} ({err}); docs/machines.md has an "
                         "example") from err
    for name in data:
        if name not in _KNOWN:
            raise unknown(f"entry in site defaults {path}", name, _KNOWN)
    machine, slurm = data.get("machine", ""), data.get("slurm", {})
    if not isinstance(machine, str) or not isinstance(slurm, dict):
        raise InputError(f"site defaults {path}: give machine = \"NAME or FILE\" and a table "
                         "[slurm]")
    if machine.endswith(".toml"):
        machine = os.path.join(os.path.dirname(path), os.path.expanduser(machine))
    return Site(path, machine, slurm)


def fill(args: argparse.Namespace) -> None:
    """Fills in the machine where --machine is not given, and says where it comes from.

    The machine in a sweep's folder wins over the site's, which wins over ``local``. A plan file
    keeps its own machine.
    """
    if getattr(args, "machine", "") is not None or getattr(args, "plan", None):
        return
    beside = os.path.join(args.out, BESIDE) if args.command == "sweep" else ""
    if beside and os.path.exists(beside):
        args.machine = beside
        print(f"note: machine {beside}, of this sweep's folder", file=sys.stderr)
        return
    site = read()
    args.machine = site.machine or "local"
    if site.machine:
        print(f"note: machine {site.machine}, from {site.path}", file=sys.stderr)
