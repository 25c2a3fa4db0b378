"""Tables and lines for people, on stderr: framed on a terminal, plain columns elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar.cost.memory.process import ProcessMemory
from hpcpar.cost.price_plan import LayerCost, Prediction
from hpcpar.schedule.steps import Comm, Schedule

#: Width of plain text that goes to a file or a pipe.
PLAIN_WIDTH = 200


def console() -> Console:
    """Where text for people goes."""
    terminal = sys.stderr.isatty()
    return Console(stderr=True, highlight=False, width=None if terminal else PLAIN_WIDTH)


def say(text: str) -> None:
    """A line for people."""
    console().print(text, markup=False, soft_wrap=True)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]],
         left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others are aligned to the right."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell).replace("[", "\\[") for cell in row))
    out.print(title, style="bold", markup=False, soft_wrap=True)
    out.print(table)


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0" if value == 0 else f"{value / 1e-9:.3g} ns"


def amount(value: float, unit: str = "B") -> str:
    """A quantity with a decimal prefix (kB, MB, Gflop)."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def show_predictions(title: str, predictions: Sequence[Prediction]) -> None:
    """One line per prediction; * marks the fastest that fits, per number of ranks."""
    best: dict[int, Prediction] = {}
    for p in predictions:
        if p.fits and (p.ranks not in best or p.iteration_s < best[p.ranks].iteration_s):
            best[p.ranks] = p
    staged = any(p.bubble_s > 0 for p in predictions)
    columns = ("strategy", "", "ranks", "iteration", "x best", "epoch", "compute", "communication",
               "exposed", *(("bubble",) if staged else ()), "sent/rank", "memory/rank", "fits")
    show(title, columns, [_prediction_row(p, best.get(p.ranks), len(predictions) > 1, staged)
                          for p in predictions])
    say(_process_line([p.process for p in predictions]))


def _prediction_row(p: Prediction, best: Prediction | None, several: bool,
                    staged: bool) -> tuple[object, ...]:
    return (
        p.strategy, "*" if best is p and several else "", p.ranks, seconds(p.iteration_s),
        _ratio(p, best), seconds(p.epoch_s), seconds(p.compute_s), seconds(p.communication_s),
        seconds(p.exposed_communication_s), *((seconds(p.bubble_s),) if staged else ()),
        amount(p.communication_bytes), amount(p.memory_bytes), "yes" if p.fits else "no",
    )


def _ratio(p: Prediction, best: Prediction | None) -> str:
    return "-" if best is None else f"{p.iteration_s / best.iteration_s:.2f}"


def say_source(predictions: Sequence[Prediction]) -> None:
    """Tell where compute times come from, where a calibrated table does not cover all of them."""
    least = min(p.measured_compute for p in predictions)
    most = max(p.measured_compute for p in predictions)
    if most > 0.0 and least < 0.999:
        say(f"note: the machine's calibrated table covers {least:.0%} to {most:.0%} of the compute "
            "time of these plans, a roofline gives the rest; measure them all with: "
            "hpcpar calibrate --network ... --batch ... (or --for plan.json)")


def show_layers(p: Prediction) -> None:
    """One line per group of neighbouring layers that are cut alike, or whose sums are scattered as
    the layers behind them are cut.

    Each stage of a pipeline has its own lines, with its first and last rank. Memory is that of the
    largest rank at the moment of its peak, and adds up to the prediction's.
    """
    groups: list[list[LayerCost]] = []
    staged = any(row.first_rank for row in p.layers)
    for row in p.layers:
        if groups and _parts(groups[-1][0]) == _parts(row):
            groups[-1].append(row)
        else:
            groups.append([row])
    show(
        f"layers of {p.network} under {p.strategy} on {p.ranks} ranks, batch {p.batch}",
        ("layers", "cut", "ranks", "compute", "communication", "sent/rank", "memory at peak"),
        [_group_row(rows, staged) for rows in groups],
        left=2,
    )
    say("note: memory at peak: weights, what layers keep, and the blocks and messages alive at the "
        f"peak of the largest rank; together {amount(p.memory_bytes)}")


def _group_row(rows: Sequence[LayerCost], staged: bool) -> tuple[object, ...]:
    """Neighbouring layers in one line."""
    return (
        rows[0].name if len(rows) == 1 else f"{rows[0].name} ... {rows[-1].name}",
        ", ".join(dict.fromkeys(map(_cut, rows))),
        _ranks(rows[0]) if staged else rows[0].ranks,
        seconds(sum(r.compute_s for r in rows)),
        seconds(sum(r.communication_s for r in rows)),
        amount(sum(r.communication_bytes for r in rows)),
        amount(sum(r.memory_bytes for r in rows)),
    )


def _process_line(each: Sequence[ProcessMemory]) -> str:
    """What processes hold beside their arrays: the same for all plans, but for the images."""
    first = each[0]
    parts = (("interpreter", first.interpreter_bytes), ("MPI", first.mpi_bytes),
             ("set-up", first.set_up_bytes), ("kernels", first.kernels_bytes))
    images = [p.read_ahead_bytes for p in each]
    known = ", ".join(f"{name} {amount(size)}" for name, size in parts)
    total = _range([p.total_bytes for p in each])
    return (f"beside these arrays each process holds about {total}: {known}, images read ahead "
            f"{_range(images)}")


def _range(sizes: Sequence[int]) -> str:
    """As 4 MB, or 4 MB to 12 MB."""
    least, most = amount(min(sizes)), amount(max(sizes))
    return least if least == most else f"{least} to {most}"


def _parts(row: LayerCost) -> tuple[object, ...]:
    """How the output is cut; sums over parts of a reduction (k) are scattered along its channels.
    """
    return row.config | {"c": row.config["c"] * row.config["k"],
                         "k": 1}, row.placement, row.first_rank, row.ranks


def _ranks(row: LayerCost) -> str:
    """As 4-7."""
    return f"{row.first_rank}-{row.first_rank + row.ranks - 1}" if row.ranks > 1 else str(
        row.first_rank)


def _cut(row: LayerCost) -> str:
    """As n=4 c=2 outer; x2 where so many ranks compute the same."""
    copies = row.ranks // math.prod(row.config.values())
    degrees = [f"{axis}={degree}" for axis, degree in row.config.items() if degree > 1]
    return " ".join(degrees + [f"x{copies}"] * (copies > 1) + ["outer"]
                    * (row.placement == "outer")) or "-"


def schedule_rows(schedule: Schedule, prediction: Prediction) -> list[dict[str, object]]:
    """The schedule as plain data, one entry per step."""
    out: list[dict[str, object]] = []
    for step, cost in zip(schedule.steps, prediction.steps, strict=True):
        row: dict[str, object] = {"index": step.index, "phase": step.phase.value,
                                  "layer": step.layer}
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
    """Every step: what travels, how, and by when; messages and bytes are those of the rank that
    sends most.
    """
    names = ("index", "phase", "layer", "kind", "group", "algorithm", "segments", "messages",
             "sent_bytes", "needed_by", "seconds")
    rows = []
    for row in schedule_rows(schedule, prediction):
        cells = ["" if row.get(name) is None else str(row[name]) for name in names]
        cells[-1] = seconds(float(str(row["seconds"])))
        if "sent_bytes" in row:
            cells[8] = amount(float(str(row["sent_bytes"])))
        rows.append(cells)
    columns = ("step", "phase", "layer", "kind", "group", "algorithm", "segments", "messages",
               "sent", "needed by", "time")
    show(f"schedule of an iteration, {len(rows)} steps", columns, rows, left=4)
