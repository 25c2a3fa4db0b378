"""A plan as one page: the answer, all grids, its layers, an iteration, and a rank's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcpar.prediction.prediction import Prediction
from hpcpar.report.tables import amount, ends, seconds
from hpcpar.report.tables.document import Parts
from hpcpar.report.tables.grid_tables import (
    GRIDS_NOTE,
    LAYERS_NOTE,
    grids_table,
    grids_title,
    layers_title,
    reason,
)
from hpcpar.report.tables.grid_tables import layers_table as grid_layers_table
from hpcpar.report.tables.prediction_tables import PEAK, layers_table
from hpcpar.search.grids import GridAnswer


def page(answer: str, words: str, predictions: Sequence[Prediction], grid: GridAnswer | None,
         pictures: dict[str, str]) -> Parts:
    """The parts of the page.

    Parameters
    ----------
    predictions : sequence of Prediction
        The plan, then its alternatives.
    pictures : dict
        ``grids``, if there is a grid, and ``timeline``, in HTML.
    """
    p = predictions[0]
    parts: list[Any] = [
        ("title", f"{p.network} on {p.ranks} ranks of {p.machine}, batch {p.batch}"),
        ("answer", answer), *[("text", words)] * bool(words)]
    if grid is not None:
        parts += [("text", reason(grid)), ("heading", "All grids Pr x Pc"),
                  ("picture", pictures["grids"]), ("text", grids_title(grid)),
                  ("table", grids_table(grid)), ("note", GRIDS_NOTE),
                  ("heading", "Model or domain parallelism by layer"),
                  ("text", layers_title(grid)), ("table", grid_layers_table(grid)),
                  ("note", LAYERS_NOTE)]
    if len(predictions) > 1:
        parts += [("heading", "The fastest plans"), ("table", _plans(predictions))]
    return [*parts, ("heading", "An iteration"), ("picture", pictures["timeline"]),
            ("table", layers_table(p)), ("note", f"{PEAK}; {amount(p.memory_bytes)} in all"),
            ("heading", "Memory of the largest rank"), ("table", _memory(p))]


def _plans(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    return [("strategy", "iteration", "90% interval", "compute", "exposed communication", "memory",
             "fits"),
            *((p.strategy, seconds(p.iteration_s), " - ".join(ends(p.iteration_s, p.trust)),
               seconds(p.compute_s), seconds(p.exposed_communication_s), amount(p.memory_bytes),
               "yes" if p.fits else "no") for p in predictions)]


def _memory(p: Prediction) -> list[tuple[str, str]]:
    uses = {name.removesuffix("_bytes"): size for name, size in vars(p.memory).items()}
    return [("use", "bytes"), *((use, amount(int(size))) for use, size in uses.items()),
            ("all arrays", amount(p.memory_bytes)),
            ("available", amount(p.memory_limit_bytes)),
            ("the process besides, on the host", amount(p.process.total_bytes))]
