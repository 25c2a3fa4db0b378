"""Forms: lines for a shell with values in braces, as in ``-n {ranks} <-ppn {node_ranks}>``.

A part in angle brackets is left out where a value in it is missing (empty or 0).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcpar.errors import InputError

Values = Mapping[str, "str | int"]


def filled(form: str, values: Values) -> str:
    """A form with its values, as words of a shell; empty where a value outside of brackets is
    missing.
    """

    def known(text: str) -> bool:
        return all(values[name] for name in re.findall(r"\{(\w+)\}", text))

    form = re.sub("<(.*?)>", lambda part: part[1] if known(part[1]) else "", form)
    return quoted([w.format_map(values) for w in form.split()]) if known(form) else ""


def quoted(words: Sequence[str]) -> str:
    """Words of a batch script, which no shell takes for anything else.

    Raises
    ------
    InputError
        One of them has a line break, which would begin another line of the script.
    """
    for word in words:
        if re.search(r"[\n\r\0]", word):
            raise InputError(f"{word!r} cannot stand in a batch script: it has a line break; "
                             "choose another name")
    return shlex.join(words)
