"""Site defaults: the machine and options of batch jobs in ``~/.config/hpcpar.toml``."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from hpcpar.io.files import looks_like_file
from hpcpar.io.schema import Line, read_toml
from hpcpar.report.tables import say
from hpcpar.sweep.folder import MACHINE

#: Path of another file of site defaults; empty for none.
VARIABLE = "HPCPAR_CONFIG"


@dataclass(frozen=True)
class SiteDefaults:
    """Contents of the file: a preset or machine file, and options of batch jobs."""

    machine: Line = ""
    job: dict[str, object] = field(default_factory=dict)


def config_path() -> str:
    """The path of the site defaults, whether or not the file exists; empty for none."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.environ.get(VARIABLE, os.path.join(folder, "hpcpar.toml"))


def read() -> SiteDefaults:
    """Reads the site defaults; they are empty without a file.

    Raises
    ------
    InputError
        The file cannot be read, or has an unknown or wrong entry.
    """
    path = config_path()
    if not path or (VARIABLE not in os.environ and not os.path.exists(path)):
        return SiteDefaults()
    given = read_toml(path, SiteDefaults, "site defaults", "docs/reference/machines.md")
    if not looks_like_file(given.machine):
        return given
    beside = os.path.join(os.path.dirname(path), os.path.expanduser(given.machine))
    return replace(given, machine=beside)


def fill(options: Any, command: str, given: Collection[str]) -> Any:
    """The options, with a machine if none was given; prints the machine's source.

    The machine in a sweep's folder has priority over the site's machine, and that over the default.
    A plan file and a record keep their own machine.
    """
    fixed = getattr(options, "plan", None) or command == "trace"
    if "machine" in given or fixed or not hasattr(options, "machine"):
        return options
    machine, where = "", ""
    if command == "sweep" and os.path.exists(os.path.join(options.out, MACHINE)):
        machine, where = os.path.join(options.out, MACHINE), "from this sweep's folder"
    elif site := read().machine:
        machine, where = site, f"from {config_path()}"
    if not machine:
        return options
    say(f"note: machine {machine}, {where}")
    return replace(options, machine=machine)
