"""The predicted side of a comparison: what a record's prediction says of the steps of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Block, Span
from hpcpar.report.lateness import Origin
from hpcpar.schedule.steps import Phase
from hpcpar.train.record import RunRecord, StepInfo

Entry = TypeVar("Entry", StepCost, Span, Block)

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


def blocks(prediction: dict[str, Any]) -> list[Block]:
    """What a predicted pipeline's stages do as wholes."""
    found = (made(Block, entry) for entry in entries(prediction, "blocks"))
    return [block for block in found if block is not None]


@dataclass(frozen=True)
class Expected:
    """What is predicted of a step, all micro-batches together: what is exposed of a communication,
    and all of a compute step.
    """

    part: str
    phase: str
    layer: str
    label: str
    seconds: float


def expected(record: RunRecord, source: Origin | None) -> list[Expected]:
    """The predicted steps; of a pipeline's transfers between stages, what the timeline leaves
    uncovered.
    """
    out = []
    hidden = _covered(record, source) if source is not None and len(source.stages) > 1 else {}
    for step in entries(record.prediction, "steps"):
        place, seconds = _place(step, record.steps), number(step, "exposed_s", "seconds")
        if place is None or seconds is None:
            continue
        kind, phase, layer = place
        found = Expected(_KINDS.get(kind, "compute"), phase, layer, str(step.get("label", "")),
                         seconds)
        out.append(replace(found, seconds=seconds * hidden.get((phase, found.label), 1.0)))
    return out


def _place(step: dict[str, Any], known: Sequence[StepInfo]) -> tuple[str, str, str] | None:
    """Kind, phase and layer of a predicted step: its own entries, or those of the recorded step of
    its label (and index).
    """
    if {"kind", "phase", "layer"} <= set(step):
        return str(step["kind"]), str(step["phase"]), str(step["layer"])
    info = next((s for s in known if s.label == step.get("label")), None)
    index = step.get("index")
    if isinstance(index, int) and 0 <= index < len(known) and step.get("label", known[index].label) == known[index].label:
        info = known[index]
    return (info.kind, info.phase, info.layer) if info else None


def _covered(record: RunRecord, source: Origin) -> dict[tuple[str, str], float]:
    """(phase, label) of a transfer between stages -> the part of it that a stage really stands
    still for: some arrive while it computes.
    """
    uncovered: dict[tuple[int, str], float] = {}
    free: dict[int, float] = {}
    done: dict[tuple[int, str, int], float] = {}
    # a stage's blocks are in their order; the blocks before one on other stages have ended before
    # it begins
    for b in sorted(blocks(record.prediction), key=lambda b: (b.start_s, b.end_s)):
        towards = -1 if b.phase == Phase.FORWARD.value else 1
        ready = max(free.get(b.stage, 0.0),
                    done.get((b.stage + towards, b.phase, b.microbatch), 0.0))
        if b.phase in (Phase.FORWARD.value, Phase.BACKWARD.value):
            uncovered[b.stage, b.phase] = uncovered.get((b.stage, b.phase), 0.0) + b.start_s - ready
        free[b.stage] = done[b.stage, b.phase, b.microbatch] = b.end_s
    moves: dict[tuple[str, str], int] = {}
    for comm in source.schedule.comms:
        if comm.phase is not Phase.LOSS and source.between_stages(comm.index):
            moves[comm.phase.value, comm.label] = source.stage(int(comm.wanter.config.first))
    total: dict[tuple[int, str], float] = {}
    for step in entries(record.prediction, "steps"):
        key = str(step.get("phase")), str(step.get("label"))
        if key in moves:
            at = moves[key], key[0]
            total[at] = total.get(at, 0.0) + (number(step, "exposed_s") or 0.0)
    return {key: min(1.0, uncovered.get((stage, key[0]), total[stage, key[0]]) / total[stage, key[0]])
            for key, stage in moves.items() if total.get((stage, key[0]), 0.0) > 0}
