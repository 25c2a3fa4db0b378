"""Draws the pictures of the explanations: ``python -m docs.drawings [NAME ...]``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib import rc_context

from docs.drawings import diagrams, messages, times
from docs.drawings.style import FOLDER, STYLE, Canvas, save

#: Every picture by the name of its file.
PICTURES: dict[str, Callable[[], Canvas]] = {
    "grid": messages.grid, "halo": messages.halo, "ring": messages.ring,
    "pipeline": messages.pipeline, "iterations": times.iterations,
    "intervals": times.intervals, "simulated": times.simulated, "streams": times.streams,
    "comparison": times.comparison, "places": times.places, "recomputing": times.recomputing,
    "rooms": diagrams.rooms, "way-of-a-plan": diagrams.way_of_a_plan,
    "way-of-a-run": diagrams.way_of_a_run, "elimination": diagrams.elimination,
    "check": diagrams.check, "stranger": diagrams.stranger,
    "graphs": diagrams.graphs,
}


def draw(names: Sequence[str] = (), folder: Path = FOLDER) -> None:
    """Draws the named pictures, or all."""
    with rc_context(STYLE):
        for name in names or PICTURES:
            save(PICTURES[name](), name, folder)


if __name__ == "__main__":
    draw(sys.argv[1:])
