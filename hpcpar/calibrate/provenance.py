"""Section ``[quality]`` of a calibrated machine file: where and how its numbers were measured.

=========== ======================================================================================
``origin``   node names without their numbers, BLAS threads a rank, kind of device, and of a GPU its
             name, convolutions and math mode: a record must share them
``links``    per level: 90% confidence intervals of latency and inverse bandwidth (over rounds),
             root mean square of the fit's relative errors, inverse bandwidth of one flow alone,
             outliers among the samples
``memory``   bytes a second that a rank copies, alone on its node and with all ranks copying
``compute``  pieces of work in the table, the median and the worst spread (quartiles over median),
             outliers
``search``   what ``--for auto`` chose: strategy, its time (s), searches, pieces of work measured,
             and those of the plans near the fastest; whether the choice stands
``sources``  records that refined the table: file, start, plan, and number of pieces of work
``outdated`` why the numbers of an earlier version no longer price runs
=========== ======================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcpar.errors import InputError
from hpcpar.schema import Count, convert

#: Names of those entries of `Backend.versions`.
_TIMES_DEPEND_ON = ("gpu", "convolutions", "math")


@dataclass(frozen=True)
class Origin:
    """The setting of a measurement; times of equal settings come from the same machine."""

    #: Names of the nodes, without domains and numbers.
    nodes: str
    #: BLAS threads of a rank; 0 where unknown.
    threads: Count
    #: ``cpu`` or ``gpu``.
    device: str
    #: Entries of `Backend.versions` on which times depend; none on CPUs, and in older files.
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, hosts: Iterable[str], threads: int, device: str,
           versions: Mapping[str, str]) -> Origin:
        names = sorted({re.sub(r"\d+", "#", host.partition(".")[0]) for host in hosts})
        known = {name: versions[name] for name in _TIMES_DEPEND_ON if name in versions}
        return cls(", ".join(names), threads, device, known)

    def notes(self, versions: Mapping[str, str]) -> list[str]:
        """A line for each property in which a run's device differs from the measured one."""
        return [f"the plan's machine was measured with {name} {mine}, this run has {theirs}: "
                "calibrate again for a prediction of this run"
                for name, mine, theirs in self._differences(versions)]

    def _differences(self, versions: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Names of what differs, here and there; what one side does not know does not differ."""
        return [(name, mine, versions[name]) for name, mine in self.versions.items()
                if versions.get(name, mine) != mine]

    def require(self, other: Origin, what: str, machine: str) -> None:
        """Check that `what`, measured on `other`, fits the machine file that was measured here.

        Raises
        ------
        InputError
            Naming what differs.
        """
        remedy = "refine with records of the same setting, or calibrate a machine file for this one"
        settings = (
            ("ran on", self.nodes, other.nodes),
            ("ran with BLAS threads a rank:", self.threads, other.threads),
            ("ran on device", self.device, other.device),
            *((f"ran with {name}", mine, theirs)
              for name, mine, theirs in self._differences(other.versions)),
        )
        for text, mine, theirs in settings:
            if mine != theirs:
                raise InputError(
                    f"{what} {text} {theirs}, but {machine} was measured with {mine}; {remedy}")


def origin(quality: Mapping[str, Any], where: str) -> Origin | None:
    """The origin that a machine file tells, or None."""
    if "origin" not in quality:
        return None
    return convert(quality["origin"], Origin, f"{where}, 'quality', 'origin'",
                   "write it with: hpcpar calibrate")


def with_sources(quality: Mapping[str, Any], origin: Origin,
                 sources: list[dict[str, Any]]) -> dict[str, Any]:
    """The section with further sources; one that it has already is named once."""
    names = {_name(s) for s in sources}
    kept = [s for s in _sources(quality) if _name(s) not in names]
    return {**quality, "origin": asdict(origin), "sources": [*kept, *sources]}


def has(quality: Mapping[str, Any], source: Mapping[str, Any]) -> bool:
    """True where a source is named already."""
    return any(_name(s) == _name(source) for s in _sources(quality))


def _sources(quality: Mapping[str, Any]) -> list[dict[str, Any]]:
    return convert(quality.get("sources", []), list[dict[str, Any]], "'quality', 'sources'",
                   "write the machine file with: hpcpar calibrate")


def _name(source: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tells a record from others: copies of it under other names are the same."""
    return source.get("started"), source.get("plan"), source.get("ranks"), source.get("iterations")
