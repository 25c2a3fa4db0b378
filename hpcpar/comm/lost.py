"""Word that a rank is lost, for who supervises the job."""

from __future__ import annotations

import os

#: Names the file that takes the word, one line for each rank that was lost.
VARIABLE = "HPCPAR_LOST"
#: In a line that names a rank that a signal has ended; others tell who has missed one.
KILLED = " was killed by "


def note(line: str) -> None:
    """Leaves word, where somebody wants it."""
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"{line}\n")
