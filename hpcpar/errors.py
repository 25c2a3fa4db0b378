"""The two errors a user can cause; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: a file, option, shape, machine or plan. The program exits with status 2.

    The message is one line that names the culprit and the remedy.
    """

    #: True where every rank of the job raises the same error, so that each can simply stop.
    everywhere = False


class RunError(RuntimeError):
    """A run that started well and failed (a NaN loss, a lost peer). Exit status 1."""

    #: As for `InputError`.
    everywhere = False


def on_all_ranks(error: InputError | RunError) -> InputError | RunError:
    """Mark an error that every rank raises."""
    error.everywhere = True
    return error


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with the nearest suggestion."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {what} '{name}'{hint} (known: {', '.join(names)})")
