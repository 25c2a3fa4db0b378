"""Word that a rank is lost, for who supervises the job."""

from __future__ import annotations

import os
from contextlib import suppress

#: Names the file that takes the word, one line for each rank that was lost.
VARIABLE = "HPCPAR_LOST"
#: In a line that names a rank that a signal has ended; others tell who has missed one.
KILLED = " was killed by "


def note(line: str) -> None:
    """Leaves word, where somebody wants it."""
    path = os.environ.get(VARIABLE)
    if path:
        # without the file, that program is gone
        with suppress(FileNotFoundError), open(os.open(path, os.O_WRONLY | os.O_APPEND), "w",
                                               encoding="utf-8") as f:
            f.write(f"{line}\n")
