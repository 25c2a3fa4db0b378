"""Tables of predictions, of their layers and of a schedule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcpar.cost.memory.process import ProcessMemory
from hpcpar.cost.ratios import Ratio
from hpcpar.plan.limits import limits_in_words
from hpcpar.prediction.prediction import LayerCost, Prediction
from hpcpar.report.tables import amount, ends, say, seconds, show, show_line
from hpcpar.report.tables.answer import legend
from hpcpar.schedule.steps import Comm, Schedule

#: Parts of a layer's memory.
PEAK = ("memory at peak: weights, kept data, and the blocks and messages alive at the peak of the "
        "largest rank")
#: Columns that a narrow table of predictions leaves out, in this order.
_DROPPED = ("sent/rank", "bubble", "90% interval", "compute", "communication", "exposed",
            "epoch", "x chosen")


def show_predictions(title: str, predictions: Sequence[Prediction], wide: bool = False,
                     more_s: Mapping[str, Sequence[float]] = MappingProxyType({}),
                     ratios: Sequence[Ratio | None] = ()) -> None:
    """One line per prediction; * marks the choice, on each number of ranks.

    A note follows if the calibrated table covers only part of the compute time.

    Parameters
    ----------
    more_s : mapping
        Further columns: the times of all predictions by name.
    ratios : sequence of Ratio or None
        Time of each prediction relative to the choice; None for the choice.
    """
    compared = any(ratio is not None for ratio in ratios)
    staged = any(p.bubble_s > 0 for p in predictions)
    timed = any(p.epoch_s is not None for p in predictions)
    columns = ("strategy", "", "ranks", "iteration", "90% interval", *["x chosen"] * compared,
               *["epoch"] * timed, "compute", "communication", *more_s, "exposed",
               *["bubble"] * staged,
               "sent/rank", "memory", "fits")
    rows = []
    for i, p in enumerate(predictions):
        chosen = compared and ratios[i] is None and p.fits
        rows.append((
            p.strategy, "*" * chosen, p.ranks,
            seconds(p.iteration_s),
            " - ".join(ends(p.iteration_s, p.trust)),
            *([_ratio(ratios[i])] if compared else []),
            *[seconds(p.epoch_s)] * timed, seconds(p.compute_s), seconds(p.communication_s),
            *(seconds(values[i]) for values in more_s.values()),
            seconds(p.exposed_communication_s), *[seconds(p.bubble_s)] * staged,
            amount(p.communication_bytes), amount(p.memory_bytes), "yes" if p.fits else "no",
        ))
    mode, precision = predictions[0].batch_norm, predictions[0].precision
    if precision != "fp32":
        title += f", {precision}"
    if mode:
        title += f", batch normalization {'over the whole batch' if mode == 'sync' else mode}"
    show(title, columns, rows, drop=[name for name in _DROPPED if name in columns], wide=wide)
    starred = "the choice" + ", on each number of ranks" * (sum(bool(row[1]) for row in rows) > 1)
    marked = starred if any(row[1] for row in rows) else ""
    for line in legend([p.strategy for p in predictions], marked):
        show_line(line)
    show_line(_process_line([p.process for p in predictions]))
    covered = [p.measured_compute for p in predictions]
    if max(covered) > 0.0 and min(covered) < 0.999:
        say(f"note: the machine's calibrated table covers {min(covered):.0%} to {max(covered):.0%} "
            "of these plans' compute time, and a roofline gives the rest; measure all of it with: "
            "hpcpar calibrate --network ... --batch ... (or --for plan.json)")


def _ratio(ratio: Ratio | None) -> str:
    """Time relative to the choice, with the ends of its 90% interval."""
    if ratio is None:
        return "1"
    value = "about equal" if ratio.about_equal else f"{ratio.value:.2f}"
    return f"{value} ({ratio.low:.2f}-{ratio.high:.2f})"


def say_limits(predictions: Sequence[Prediction]) -> None:
    """Warns about rates that are a data sheet's peak; notes the plan that most exceeds its scaling
    limits, and names the others.
    """
    for warning in {p.trust.warning for p in predictions} - {""}:
        say(warning)
    passed = sorted((p for p in predictions if p.limits),
                    key=lambda p: -max(x.idle_ranks / x.ranks for x in p.limits))
    if passed:
        p, others = passed[0], [f"{o.strategy} on {o.ranks}" for o in passed[1:]]
        say(f"note: {p.strategy} on {p.ranks} ranks exceeds its limits: "
            f"{limits_in_words(p.limits)}"
            + (f"; so do {', '.join(others[:4])}" if others else "")
            + (f" and {len(others) - 4} more" if len(others) > 4 else ""))


def show_layers(p: Prediction, wide: bool = False) -> None:
    """Prints `layers_table`."""
    columns, *rows = layers_table(p)
    show(f"layers of {p.network} under {p.strategy} on {p.ranks} ranks, batch {p.batch}", columns,
         rows, left=2, drop=("sent/rank", "communication", "compute"), wide=wide)
    show_line(f"{PEAK}; {amount(p.memory_bytes)} in all")


def layers_table(p: Prediction) -> list[tuple[str, ...]]:
    """Names of the columns, then one row per group of consecutive layers that are cut alike.

    A layer whose partial sums are scattered joins the next layers if they are cut the same way.
    Each stage of a pipeline has its own lines, with its first and last rank. The memory column
    describes the largest rank at its peak, and adds up to the prediction's memory.
    """
    staged = any(row.first_rank for row in p.layers)
    rows: list[tuple[str, ...]] = [
        ("layers", "cut", "ranks", "compute", "communication", "sent/rank", "memory at peak")]
    for _, same in itertools.groupby(p.layers, _parts):
        group = list(same)
        first, last = group[0], group[-1]
        rows.append((
            first.name if first is last else f"{first.name} ... {last.name}",
            ", ".join(dict.fromkeys(map(_cut, group))),
            _ranks(first) if staged else str(first.ranks),
            seconds(sum(r.compute_s for r in group)),
            seconds(sum(r.communication_s for r in group)),
            amount(sum(r.communication_bytes for r in group)),
            amount(sum(r.memory_bytes for r in group)),
        ))
    return rows


def _process_line(each: Sequence[ProcessMemory]) -> str:
    """Memory of a process besides its arrays; plans differ only in their prefetched images."""
    first = each[0]
    parts = (("interpreter", first.interpreter_bytes), ("MPI", first.mpi_bytes),
             ("set-up", first.set_up_bytes), ("kernels", first.kernels_bytes))
    known = ", ".join(f"{name} {amount(size)}" for name, size in parts)
    total, images = (_range([getattr(p, name) for p in each])
                     for name in ("total_bytes", "read_ahead_bytes"))
    return (f"besides these arrays, each process holds about {total}: {known}, prefetched images "
            f"{images}")


def _range(sizes: Sequence[int]) -> str:
    """The range of sizes: 4 MB, or 4 MB to 12 MB."""
    least, most = amount(min(sizes)), amount(max(sizes))
    return least if least == most else f"{least} to {most}"


def _parts(row: LayerCost) -> tuple[object, ...]:
    """The cut of the output; the sums of a cut reduction (k) are scattered along channels."""
    cut = row.config | {"c": row.config["c"] * row.config["k"], "k": 1}
    return cut, row.placement, row.first_rank, row.ranks


def _ranks(row: LayerCost) -> str:
    """The ranks of a layer: 4-7."""
    last = row.first_rank + row.ranks - 1
    return f"{row.first_rank}-{last}" if row.ranks > 1 else str(last)


def _cut(row: LayerCost) -> str:
    """The cut of a layer: n=4 c=2 outer; x2 if two ranks compute the same."""
    copies = row.ranks // math.prod(row.config.values())
    words = [f"{axis}={degree}" for axis, degree in row.config.items() if degree > 1]
    words += [f"x{copies}"] * (copies > 1) + ["outer"] * (row.placement == "outer")
    return " ".join(words) or "-"


#: Field of a step -> its column in the table of a schedule.
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


def show_schedule(schedule: Schedule, prediction: Prediction, wide: bool = False) -> None:
    """Prints every step, with messages and bytes of the rank that sends most."""
    rows = []
    for row in schedule_rows(schedule, prediction):
        row["seconds"] = seconds(row["seconds"])
        if "sent_bytes" in row:
            row["sent_bytes"] = amount(row["sent_bytes"])
        rows.append(["" if row.get(name) is None else row[name] for name in _SCHEDULE])
    show(f"schedule of an iteration, {len(rows)} steps", tuple(_SCHEDULE.values()), rows, left=4,
         drop=("needed by", "segments", "messages", "algorithm", "group"), wide=wide)
