"""Whole numbers in environment variables, which anybody can set to anything."""

from __future__ import annotations

import os
import re


def whole_number(*names: str) -> int | None:
    """The number of the first of these variables that begins with one, alone or before a comma or
    a parenthesis, as in Slurm's ``4(x2),3``; None where there is none.
    """
    for name in names:
        found = re.fullmatch(r"([0-9]{1,18})([(,].*)?", os.environ.get(name, ""))
        if found:
            return int(found[1])
    return None
