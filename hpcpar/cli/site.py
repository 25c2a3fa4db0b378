"""Site defaults: ``~/.config/hpcpar.toml`` names the machine and the Slurm options once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcpar.report.tables import say
from hpcpar.schema import Line, read_toml
from hpcpar.sweep.folder import MACHINE

#: Names another file of site defaults; empty for none.
VARIABLE = "HPCPAR_CONFIG"


@dataclass(frozen=True)
class SiteDefaults:
    """The file: a preset or machine file, and Slurm options."""

    machine: Line = ""
    slurm: dict[str, object] = field(default_factory=dict)


class Site(NamedTuple):
    """Site defaults: the file, a preset or machine file, and Slurm options; empty for none."""

    path: str = ""
    machine: str = ""
    slurm: Mapping[str, object] = {}


def config_path() -> str:
    """The path of the file of site defaults, whether it exists or not; empty for none."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.environ.get(VARIABLE, os.path.join(folder, "hpcpar.toml"))


def read() -> Site:
    """The site defaults; none where there is no file.

    Raises
    ------
    InputError
        The file cannot be read, or has an unknown or wrong entry.
    """
    path = config_path()
    if not path or (VARIABLE not in os.environ and not os.path.exists(path)):
        return Site()
    given = read_toml(path, SiteDefaults, "site defaults", "docs/reference/machines.md")
    machine = given.machine
    if machine.endswith(".toml"):  # beside this file
        machine = os.path.join(os.path.dirname(path), os.path.expanduser(machine))
    return Site(path, machine, given.slurm)


def fill(args: argparse.Namespace) -> None:
    """Fills in the machine where --machine is not given, and says where it comes from.

    The machine in a sweep's folder wins over the site's, which wins over ``local``; without both
    the sweep decides. A plan file keeps its own machine, and so does a record.
    """
    known = getattr(args, "machine", "") is not None or getattr(args, "plan", None)
    if known or args.command == "trace":
        return
    beside = os.path.join(args.out, MACHINE) if args.command == "sweep" else ""
    if os.path.exists(beside):
        args.machine = beside
        say(f"note: machine {beside}, of this sweep's folder")
        return
    site = read()
    args.machine = site.machine or (None if args.command == "sweep" else "local")
    if site.machine:
        say(f"note: machine {site.machine}, from {site.path}")
