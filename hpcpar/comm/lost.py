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
        with suppress(FileNotFoundError):  # that program is gone
            word = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(word, f"{line}\n".encode())
            os.close(word)
