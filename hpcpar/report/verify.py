"""What a verification found, for people and as JSON."""

from __future__ import annotations

from typing import Any

from hpcpar.report.tables import say, show
from hpcpar.train.verify import QUANTITIES, Result


def show_result(result: Result, title: str, tolerance: float) -> None:
    """One line per layer: the largest relative difference of every quantity; * marks the largest, !
    what exceeds the tolerance.
    """
    largest = result.largest

    def cell(layer: str, quantity: str, value: float) -> str:
        if value < 0:
            return "-"
        mark = "*" if (layer, quantity) == (largest.layer, largest.quantity) else ""
        return f"{value:.1e}{'!' if value > tolerance else mark}" if value else f"0{mark}"

    show(
        title, ("layer", *(q.replace("_", " ") for q in QUANTITIES)),
        [
            (name, *(cell(name, q, float(v)) for q, v in zip(QUANTITIES, values, strict=True)))
            for name, values in zip(result.layers, result.worst, strict=True)
        ],
    )
    where = f"{largest.quantity.replace('_', ' ')} of layer '{largest.layer}'"
    say(f"largest difference: {largest.value:.1e}, {where} (tolerance {tolerance:g}); the messages sent are those of the schedule, "
        "on every rank")


def to_json(result: Result) -> dict[str, Any]:
    """The same as data; None where there is nothing to compare."""
    largest = result.largest
    return {
        "largest_difference": largest.value, "layer": largest.layer, "quantity": largest.quantity, "losses": result.losses,
        "serial_losses": result.serial_losses, "trace_equals_schedule": True,
        "layers": [
            {"name": name} | {q: float(v) if v >= 0 else None for q, v in zip(QUANTITIES, values, strict=True)}
            for name, values in zip(result.layers, result.worst, strict=True)
        ],
    }
