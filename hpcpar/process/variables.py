"""Whole numbers from environment variables, which may hold any text."""

from __future__ import annotations

import os
import re


def whole_number(*names: str) -> int | None:
    """The leading number in the first variable that has one, or None.

    A comma or a parenthesis may follow the number, as in Slurm's ``4(x2),3``.
    """
    for name in names:
        found = re.fullmatch(r"([0-9]{1,18})([(,].*)?", os.environ.get(name, ""))
        if found:
            return int(found[1])
    return None
