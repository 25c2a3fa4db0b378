"""Files that commands write: none is another file of the same command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import combinations

from hpcpar.errors import InputError
from hpcpar.files import is_special

#: A training that goes on may replace the checkpoint that it resumes.
_ALLOWED = {"checkpoint", "resume"}


class OutputFile(str):
    """The path of a file that a command writes: the type of such an option."""

    __slots__ = ()


def check_outputs(args: argparse.Namespace) -> None:
    """Checks that no output of a command is another of its files, by whatever name.

    Raises
    ------
    InputError
        Two options name one file.
    """
    for (one, path), (other, second) in combinations(_files(args), 2):
        writes = isinstance(path, OutputFile) or isinstance(second, OutputFile)
        if writes and {one, other} != _ALLOWED and _same(path, second):
            raise InputError(f"{one} and {other} are one file, {path}; give each its own")


def _files(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Outputs, and all that may be the path of another file, with the names of their options."""
    for name, value in vars(args).items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str) and each and name != "command":
                yield name.replace("_", "-"), each


def _same(path: str, other: str) -> bool:
    """True for one regular file, or for one place of two outputs that do not exist yet."""
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other) and not is_special(path)
    outputs = isinstance(path, OutputFile) and isinstance(other, OutputFile)
    return outputs and os.path.realpath(path) == os.path.realpath(other)
