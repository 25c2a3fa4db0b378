"""Section ``[quality]`` of a calibrated machine file: where and how its numbers were measured.

=========== ======================================================================================
``origin``   node names without numbers, BLAS threads per rank, and kind of device; for a GPU also
             its name, convolution library and math mode. A record must match them.
``links``    per level: 90% confidence intervals of latency and inverse bandwidth (over rounds),
             root mean square of the fit's relative errors, inverse bandwidth of a single flow,
             number of outliers among the samples
``memory``   copy rate of a rank (bytes per second), alone on its node and while all ranks copy
``compute``  number of pieces of work in the table, their median and worst spread (interquartile
             range over median), number of outliers
``search``   choice of ``--for auto``: strategy, iteration time (s), number of searches, measured
             and all pieces of work of the plans near the fastest, whether the choice is stable
``kernels``  time of NumPy's convolutions over PyTorch's, by kind, where these times decided
``sources``  records that refined the table: file, start, plan, number of pieces of work
``outdated`` why numbers from an earlier version no longer predict runs
=========== ======================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.schema import Count, convert

#: Entries of `Backend.versions` that affect times.
_TIMES_DEPEND_ON = ("gpu", "convolutions", "math")


@dataclass(frozen=True)
class Origin:
    """The setting of a measurement. Times from equal settings are comparable."""

    #: Names of the nodes, without domains and numbers.
    nodes: str
    #: BLAS threads per rank; 0 if unknown.
    threads: Count
    #: ``cpu`` or ``gpu``.
    device: str
    #: Entries of `Backend.versions` that affect times; empty in older files.
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, hosts: Iterable[str], threads: int, device: str,
           versions: Mapping[str, str]) -> Origin:
        names = sorted({re.sub(r"\d+", "#", host.partition(".")[0]) for host in hosts})
        known = {name: versions[name] for name in _TIMES_DEPEND_ON if name in versions}
        return cls(", ".join(names), threads, device, known)

    def notes(self, versions: Mapping[str, str]) -> list[str]:
        """A line for each property in which a run's device differs from the measured device."""
        return [f"the plan's machine was measured with {name} {mine}, but this run has {theirs}: "
                "calibrate again to predict this run"
                for name, mine, theirs in self._differences(versions)]

    def _differences(self, versions: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Entries that both know and that differ: name, value here, value in `versions`."""
        return [(name, mine, versions[name]) for name, mine in self.versions.items()
                if versions.get(name, mine) != mine]

    def require(self, other: Origin, what: str, machine: str) -> None:
        """Check that a record `what` with origin `other` matches the machine file `machine`.

        Raises
        ------
        InputError
            The origins differ.
        """
        remedy = (f"refine with records of the same setting (run --machine {machine}), or "
                  "calibrate a machine file for this one")
        settings = (
            ("ran on", self.nodes, other.nodes),
            ("ran with BLAS threads per rank:", self.threads, other.threads),
            ("ran on device", self.device, other.device),
            *((f"ran with {name}", mine, theirs)
              for name, mine, theirs in self._differences(other.versions)),
        )
        for text, mine, theirs in settings:
            if mine != theirs:
                raise InputError(
                    f"{what} {text} {theirs}, but {machine} was measured with {mine}; {remedy}")


def origin(quality: Mapping[str, Any], where: str) -> Origin | None:
    """The origin in a machine file's section, or None."""
    if "origin" not in quality:
        return None
    return convert(quality["origin"], Origin, f"{where}, 'quality', 'origin'",
                   "write it with: hpcpar calibrate")


def with_sources(quality: Mapping[str, Any], origin: Origin,
                 sources: list[dict[str, Any]]) -> dict[str, Any]:
    """The section with more sources, without duplicates."""
    names = {_name(s) for s in sources}
    kept = [s for s in _sources(quality) if _name(s) not in names]
    return {**quality, "origin": asdict(origin), "sources": [*kept, *sources]}


def has(quality: Mapping[str, Any], source: Mapping[str, Any]) -> bool:
    """True if the section lists a source."""
    return any(_name(s) == _name(source) for s in _sources(quality))


def _sources(quality: Mapping[str, Any]) -> list[dict[str, Any]]:
    return convert(quality.get("sources", []), list[dict[str, Any]], "'quality', 'sources'",
                   "write the machine file with: hpcpar calibrate")


def _name(source: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identity of a record, which does not depend on the file's name."""
    return source.get("started"), source.get("plan"), source.get("ranks"), source.get("iterations")
