"""The two errors that a user can cause; every other exception is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

E = TypeVar("E", bound=Exception)
#: Control characters except tab and newline, bidirectional controls, and surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class InputError(ValueError):
    """Bad input: a file, option, shape, machine or plan. The program exits with status 2.

    The message is one line that names the culprit and the remedy.
    """

    #: True if every rank of the job raises this error, so that each rank can stop on its own.
    everywhere = False


class RunError(RuntimeError):
    """A run that failed after it started (a NaN loss, a lost peer). Exit status 1."""

    #: As for `InputError`.
    everywhere = False


def on_all_ranks(error: E) -> E:
    """Marks an error of which every rank knows: each raises one."""
    error.everywhere = True  # type: ignore[attr-defined]
    return error


def unknown(what: str, name: str, known: Iterable[str],
            answers: Mapping[str, str] | None = None) -> InputError:
    """The error for a name that is not in `known`; it suggests the closest match.

    Parameters
    ----------
    answers : mapping, optional
        Better answers to some names, as in `hpcpar.options.other_names`.
    """
    names = sorted(known)
    lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    if answer := (answers or {}).get(name.lower().replace("_", "-")):
        return InputError(f"unknown {what} '{name}': {answer}")
    hint = f"; did you mean '{lower[near[0]]}'?" if near else ""
    listed = f" (known: {', '.join(names)})" if names else ""
    return InputError(f"unknown {what} '{name}'{hint}{listed}")


def require_free(what: str, name: str, owner: str | None, module: str) -> None:
    """Checks that a name can be registered by `module`.

    Parameters
    ----------
    owner : str or None
        The module that registered the name; it may do so again, as in a notebook.

    Raises
    ------
    InputError
        Another module registered the name.
    """
    if owner not in (None, module):
        raise InputError(f"{what} '{name}' is already defined in {owner}; rename the one in "
                         f"{module}")


def visible(text: str) -> str:
    """Text that is safe to print: control characters from files become escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(err: BaseException) -> str:
    """Type and message of an exception on one line."""
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text}" if text else type(err).__name__
