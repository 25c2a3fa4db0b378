"""The result of a verification, as a table and as JSON."""

from __future__ import annotations

from typing import Any

from hpcpar.report.answer import of_verification
from hpcpar.report.tables import show, show_line
from hpcpar.train.verify import QUANTITIES, Result


def show_result(result: Result, title: str, tolerance: float, wide: bool = False) -> None:
    """Prints the verdict, and the largest relative difference of every quantity of every layer.

    * marks the largest of all, ! a difference above the tolerance.
    """
    largest = result.largest

    def cell(layer: str, quantity: str, value: float) -> str:
        if value < 0:
            return "-"
        mark = "*" if (layer, quantity) == (largest.layer, largest.quantity) else ""
        return f"{value:.1e}{'!' if value > tolerance else mark}" if value else f"0{mark}"

    rows = []
    for name, values in zip(result.layers, result.worst, strict=True):
        rows.append((name, *(cell(name, QUANTITIES[i], float(v)) for i, v in enumerate(values))))
    show_line(of_verification(largest.value <= tolerance, largest.value, tolerance,
                              len(result.losses)))
    show(title, ("layer", *(q.replace("_", " ") for q in QUANTITIES)), rows,
         drop=("running statistics", "weight"), wide=wide)
    where = f"{largest.quantity.replace('_', ' ')} of layer '{largest.layer}'"
    show_line(f"largest difference: {largest.value:.1e}, {where} (tolerance {tolerance:g}); the "
              "messages sent are those of the schedule, on every rank")


def to_json(result: Result) -> dict[str, Any]:
    """The same as plain data; None where a layer lacks the quantity."""
    largest = result.largest
    return {
        "largest_difference": largest.value,
        "layer": largest.layer,
        "quantity": largest.quantity,
        "losses": result.losses,
        "serial_losses": result.serial_losses,
        "trace_equals_schedule": True,
        "layers": [
            {"name": name}
            | {q: float(v) if v >= 0 else None for q, v in zip(QUANTITIES, values, strict=True)}
            for name, values in zip(result.layers, result.worst, strict=True)
        ],
    }
