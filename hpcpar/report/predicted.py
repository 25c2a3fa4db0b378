"""The predicted side of a comparison: what a record's prediction says of the steps of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Span
from hpcpar.train.record import RunRecord, StepInfo

Entry = TypeVar("Entry", StepCost, Span)

_KINDS = {"compute": "compute", "comm": "communication"}


def number(data: Any, *names: str) -> float | None:
    """The first of the entries that is there and is a number."""
    for name in names:
        value = data.get(name) if isinstance(data, dict) else None
        if isinstance(value, int | float):
            return float(value)
    return None


def entries(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects; empty where it is none."""
    value = data.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def made(of: type[Entry], data: Mapping[str, Any]) -> Entry | None:
    """A dataclass from its JSON data; None where that lacks some of it."""
    known = {f.name: data[f.name] for f in fields(of) if f.name in data}
    complete = all(f.name in known for f in fields(of) if f.default is MISSING)
    return of(**known) if complete else None


@dataclass(frozen=True)
class Expected:
    """What is predicted of a step: what is exposed of a communication, and all of a compute step.
    """

    part: str
    phase: str
    layer: str
    label: str
    seconds: float


def expected(record: RunRecord) -> list[Expected]:
    """The predicted steps."""
    out = []
    for step in entries(record.prediction, "steps"):
        place, seconds = _place(step, record.steps), number(step, "exposed_s", "seconds")
        if place is not None and seconds is not None:
            kind, phase, layer = place
            out.append(Expected(_KINDS.get(kind, "compute"), phase, layer,
                                str(step.get("label", "")), seconds))
    return out


def _place(step: dict[str, Any], known: Sequence[StepInfo]) -> tuple[str, str, str] | None:
    """Kind, phase and layer of a predicted step: its own entries, or those of the recorded step of
    its label (and index).
    """
    if {"kind", "phase", "layer"} <= set(step):
        return str(step["kind"]), str(step["phase"]), str(step["layer"])
    info = next((s for s in known if s.label == step.get("label")), None)
    index = step.get("index")
    at_index = known[index:index + 1] if isinstance(index, int) and index >= 0 else ()
    for one in at_index:
        info = one if step.get("label", one.label) == one.label else info
    return (info.kind, info.phase, info.layer) if info else None
