"""The result of a verification, as a table and as JSON."""

from __future__ import annotations

from functools import partial
from typing import Any

from hpcpar.report.tables import show, show_line
from hpcpar.report.tables.answer import of_verification
from hpcpar.train.verify import QUANTITIES, Result


def show_result(result: Result, title: str, wide: bool = False) -> None:
    """Prints the verdict, and the relative difference of every quantity of every layer.

    * marks the largest fraction of its tolerance, ! every difference above its tolerance.
    """
    largest = result.largest

    def cell(layer: str, quantity: str, value: float, tolerance: float) -> str:
        if value < 0:
            return "-"
        mark = "*" if (layer, quantity) == (largest.layer, largest.quantity) else ""
        return f"{value:.1e}{'!' if value > tolerance else mark}" if value else f"0{mark}"

    rows = [(name, *map(partial(cell, name), QUANTITIES, values, tolerances))
            for name, values, tolerances in zip(result.layers, result.worst, result.tolerance,
                                                strict=True)]
    show_line(of_verification(result.passes, largest.value, largest.tolerance,
                              len(result.losses)))
    show(title, ("layer", *(q.replace("_", " ") for q in QUANTITIES)), rows,
         drop=("running statistics", "weight"), wide=wide)
    show_line(f"worst difference: {largest.value:.1e}, {largest} (tolerance "
              f"{largest.tolerance:.1e}); all ranks sent exactly the schedule's messages")


def to_json(result: Result) -> dict[str, Any]:
    """The same as plain data; None where a layer lacks the quantity."""
    largest = result.largest
    return {
        "largest_difference": largest.value,
        "tolerance": largest.tolerance,
        "layer": largest.layer,
        "quantity": largest.quantity,
        "losses": result.losses,
        "serial_losses": result.serial_losses,
        "trace_equals_schedule": True,
        "layers": [
            {"name": name}
            | {q: float(v) if v >= 0 else None for q, v in zip(QUANTITIES, values, strict=True)}
            | {f"{q}_tolerance": float(t) if v >= 0 else None
               for q, v, t in zip(QUANTITIES, values, tolerances, strict=True)}
            for name, values, tolerances in zip(result.layers, result.worst, result.tolerance,
                                                strict=True)
        ],
    }
