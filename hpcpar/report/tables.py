"""Tables and lines for people, on stderr: framed on a terminal, plain columns elsewhere."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcpar.cost.memory.process import ProcessMemory
from hpcpar.cost.price_plan import LayerCost, Prediction
from hpcpar.schedule.steps import Comm, Schedule

#: Width of plain text that goes to a file or a pipe.
PLAIN_WIDTH = 200


def console(width: int = PLAIN_WIDTH) -> Console:
    """The stream of text for people; `width` is that of plain text."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else width)


def say(text: str, width: int | None = None) -> None:
    """Prints a line for people, broken only where a `width` is given."""
    console(width or PLAIN_WIDTH).print(text, markup=False, soft_wrap=width is None)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1,
         width: int = PLAIN_WIDTH) -> None:
    """Prints a table; the first `left` columns are text, the others are aligned to the right."""
    out = console(width)
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False)
    for i, name in enumerate(columns):
        text = i < left
        table.add_column(name, justify="left" if text else "right", no_wrap=not text,
                         overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    out.print(title, style="bold", markup=False)
    out.print(table)


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0" if value == 0 else f"{value / 1e-9:.3g} ns"


def percent(value: float | None) -> str:
    """An accuracy; below 0 it is shown as 0."""
    return "-" if value is None else f"{max(0.0, value):.1%}"


def amount(value: float, unit: str = "B") -> str:
    """A quantity with a decimal prefix (kB, MB, Gflop)."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def show_predictions(title: str, predictions: Sequence[Prediction]) -> None:
    """One line per prediction; * marks the fastest that fits, per number of ranks.

    A note tells where a calibrated table covers only some of the compute times.
    """
    best: dict[int, Prediction] = {}
    for p in sorted(predictions, key=lambda p: p.iteration_s):
        if p.fits:
            best.setdefault(p.ranks, p)
    staged = any(p.bubble_s > 0 for p in predictions)
    columns = ("strategy", "", "ranks", "iteration", "x best", "epoch", "compute", "communication",
               "exposed", *["bubble"] * staged, "sent/rank", "memory/rank", "fits")
    rows = []
    for p in predictions:
        first = best.get(p.ranks)
        rows.append((
            p.strategy, "*" if first is p and len(predictions) > 1 else "", p.ranks,
            seconds(p.iteration_s), f"{p.iteration_s / first.iteration_s:.2f}" if first else "-",
            seconds(p.epoch_s), seconds(p.compute_s), seconds(p.communication_s),
            seconds(p.exposed_communication_s), *[seconds(p.bubble_s)] * staged,
            amount(p.communication_bytes), amount(p.memory_bytes), "yes" if p.fits else "no",
        ))
    show(title, columns, rows)
    say(_process_line([p.process for p in predictions]))
    covered = [p.measured_compute for p in predictions]
    if max(covered) > 0.0 and min(covered) < 0.999:
        say(f"note: the machine's calibrated table covers {min(covered):.0%} to {max(covered):.0%} "
            "of the compute time of these plans, a roofline gives the rest; measure them all with: "
            "hpcpar calibrate --network ... --batch ... (or --for plan.json)")


def show_layers(p: Prediction) -> None:
    """One line per group of neighbouring layers that are cut alike.

    Layers also belong together whose sums are scattered as the layers behind them are cut. Each
    stage of a pipeline has its own lines, with its first and last rank. Memory is that of the
    largest rank at the moment of its peak, and adds up to the prediction's.
    """
    staged = any(row.first_rank for row in p.layers)
    rows = []
    for _, same in itertools.groupby(p.layers, _parts):
        group = list(same)
        first, last = group[0], group[-1]
        rows.append((
            first.name if first is last else f"{first.name} ... {last.name}",
            ", ".join(dict.fromkeys(map(_cut, group))),
            _ranks(first) if staged else first.ranks,
            seconds(sum(r.compute_s for r in group)),
            seconds(sum(r.communication_s for r in group)),
            amount(sum(r.communication_bytes for r in group)),
            amount(sum(r.memory_bytes for r in group)),
        ))
    show(f"layers of {p.network} under {p.strategy} on {p.ranks} ranks, batch {p.batch}",
         ("layers", "cut", "ranks", "compute", "communication", "sent/rank", "memory at peak"),
         rows, left=2)
    say("note: memory at peak: weights, what layers keep, and the blocks and messages alive at the "
        f"peak of the largest rank; together {amount(p.memory_bytes)}")


def _process_line(each: Sequence[ProcessMemory]) -> str:
    """Memory of a process beside its arrays: the same for all plans, but for the images."""
    first = each[0]
    parts = (("interpreter", first.interpreter_bytes), ("MPI", first.mpi_bytes),
             ("set-up", first.set_up_bytes), ("kernels", first.kernels_bytes))
    known = ", ".join(f"{name} {amount(size)}" for name, size in parts)
    return (f"beside these arrays each process holds about {_range([p.total_bytes for p in each])}:"
            f" {known}, images read ahead {_range([p.read_ahead_bytes for p in each])}")


def _range(sizes: Sequence[int]) -> str:
    """As 4 MB, or 4 MB to 12 MB."""
    least, most = amount(min(sizes)), amount(max(sizes))
    return least if least == most else f"{least} to {most}"


def _parts(row: LayerCost) -> tuple[object, ...]:
    """The cut of the output; sums over parts of a reduction (k) are scattered along channels."""
    cut = row.config | {"c": row.config["c"] * row.config["k"], "k": 1}
    return cut, row.placement, row.first_rank, row.ranks


def _ranks(row: LayerCost) -> str:
    """As 4-7."""
    last = row.first_rank + row.ranks - 1
    return f"{row.first_rank}-{last}" if row.ranks > 1 else str(last)


def _cut(row: LayerCost) -> str:
    """As n=4 c=2 outer; x2 where so many ranks compute the same."""
    copies = row.ranks // math.prod(row.config.values())
    words = [f"{axis}={degree}" for axis, degree in row.config.items() if degree > 1]
    words += [f"x{copies}"] * (copies > 1) + ["outer"] * (row.placement == "outer")
    return " ".join(words) or "-"


#: Fields of a step in the table of a schedule, and their columns.
_SCHEDULE = {"index": "step", "phase": "phase", "layer": "layer", "kind": "kind", "group": "group",
             "algorithm": "algorithm", "segments": "segments", "messages": "messages",
             "sent_bytes": "sent", "needed_by": "needed by", "seconds": "time"}


def schedule_rows(schedule: Schedule, prediction: Prediction) -> list[dict[str, Any]]:
    """The schedule as plain data, one entry per step."""
    out: list[dict[str, Any]] = []
    for step, cost in zip(schedule.steps, prediction.steps, strict=True):
        row: dict[str, Any] = {"index": step.index, "phase": step.phase.value, "layer": step.layer}
        if isinstance(step, Comm):
            row |= {
                "kind": step.kind.value, "tensor": str(step.tensor),
                "group": step.group.size if step.group else None,
                "algorithm": step.algorithm, "segments": step.segments, "messages": cost.messages,
                "sent_bytes": cost.sent_bytes, "needed_by": step.needed_by,
            }
        else:
            row |= {"kind": step.op.value}
        out.append(row | {"seconds": cost.seconds})
    return out


def show_schedule(schedule: Schedule, prediction: Prediction) -> None:
    """Every step; messages and bytes are those of the rank that sends most."""
    rows = []
    for row in schedule_rows(schedule, prediction):
        row["seconds"] = seconds(row["seconds"])
        if "sent_bytes" in row:
            row["sent_bytes"] = amount(row["sent_bytes"])
        rows.append(["" if row.get(name) is None else row[name] for name in _SCHEDULE])
    show(f"schedule of an iteration, {len(rows)} steps", tuple(_SCHEDULE.values()), rows, left=4)
