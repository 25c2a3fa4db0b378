"""Notes about lost ranks, for the program that supervises the job."""

from __future__ import annotations

import os
from contextlib import suppress

#: Environment variable with the path of the file for notes, one line each.
VARIABLE = "HPCPAR_LOST"
#: Marks a line that names a rank killed by a signal; other lines name a rank that lost contact with
#: another one.
KILLED = " was killed by "


def note(line: str) -> None:
    """Append a line to the file, if a supervisor has set one."""
    path = os.environ.get(VARIABLE)
    if path:
        # without the file, the supervisor is gone
        with suppress(FileNotFoundError), open(os.open(path, os.O_WRONLY | os.O_APPEND), "w",
                                               encoding="utf-8") as f:
            f.write(f"{line}\n")
