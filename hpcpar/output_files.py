"""Files that commands write: no two of a command are the same file, and each replaces only a
file of its own kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hpcpar.errors import InputError
from hpcpar.files import is_special
from hpcpar.option_fields import OptionGroup, options_of

#: A training that goes on may replace the checkpoint that it resumes.
_ALLOWED = {"checkpoint", "resume"}
#: Bytes of a file that tell its kind.
_HEAD = 1 << 20
_HDF5 = rb"\A\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class OutputKind:
    """A kind of file: the type of an option that names one for a command to write.

    Attributes
    ----------
    pattern : bytes
        Regular expression of something in the first megabyte of such a file.
    holds : callable
        Whether an HDF5 file has this kind.
    """

    what: str
    pattern: bytes
    holds: Callable[[Any], bool] | None = None

    def __call__(self, path: str) -> str:
        return path

    def check(self, path: str) -> None:
        """Checks that a file which the command would replace begins as one of this kind.

        Raises
        ------
        InputError
            It does not.
        """
        if os.path.isfile(path):
            with open(path, "rb") as f:
                head = f.read(_HEAD)
            if head and not re.search(self.pattern, head):
                raise self._foreign(path)

    def check_content(self, path: str) -> None:
        """Checks an HDF5 file further. Of a job, one rank needs to call it.

        Raises
        ------
        InputError
            It has another kind, or is damaged.
        """
        from hpcpar.hdf5 import check, open_hdf5

        if self.holds is None or not holds_something(path):
            return
        check([path], self.what, remedy := "remove it, or choose another name", True)
        with open_hdf5(path, self.what, remedy) as f:
            if not self.holds(f):
                raise self._foreign(path)

    def _foreign(self, path: str) -> InputError:
        return InputError(f"{path} exists and is not a {self.what}: it is not replaced; choose "
                          "another name")


PLAN = OutputKind("plan file", rb'"hpcpar_plan"')
NETWORK = OutputKind("network file", rb'"hpcpar_network"')
MACHINE = OutputKind("machine file", rb"(?m)^\s*(\[\[\s*levels\s*\]\]|levels\s*=)")
PICTURE = OutputKind("picture", rb"(?s)\A(\x89PNG|%PDF|%!PS|\xff\xd8\xff|II\*|RIFF|<\?xml.*<svg)")
TIMELINE = OutputKind("timeline", rb'\A\s*\{\s*"traceEvents"')
PROGRAMS = OutputKind("GOAL file", rb"\Anum_ranks \d")
RECORD = OutputKind("run record", _HDF5, lambda f: "hpcpar_record" in f.attrs)
CHECKPOINT = OutputKind("checkpoint", _HDF5, lambda f: (
    "state" in f and "hpcpar_checkpoint" in f["state"].attrs))
METRICS = OutputKind("table of metrics", rb"\Aepoch,step,loss,")
STATE = OutputKind("state_dict of PyTorch", rb"(?s)\APK\x03\x04.{26}[^/]+/data\.pkl")
#: A page with the words of its reader is never replaced.
PAGE = OutputKind("new file", rb"(?!)")
DATA = OutputKind("data file", _HDF5, lambda f: "images" in f)


def check_outputs(options: OptionGroup) -> None:
    """Checks that no output of a command is another of its files, by whatever name, or a file of
    another kind.

    Raises
    ------
    InputError
        Two options name one file, or the file to replace is not such an output.
    """
    for (one, path, kind), (other, second, its) in combinations(_files(options), 2):
        to_be = kind and its and os.path.realpath(path) == os.path.realpath(second)
        writes = (kind or its) and {one, other} != _ALLOWED
        if writes and (to_be or same_file(path, second)) and not is_special(path):
            raise InputError(f"{one} and {other} are one file, {path}; give each its own")
    for _, path, kind in _files(options):
        if kind:
            kind.check(path)


def holds_something(path: str) -> bool:
    """Whether there is a file that is not empty."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _files(options: OptionGroup) -> Iterator[tuple[str, str, OutputKind | None]]:
    """Outputs with their kinds, and all that may be the path of another file, with the names of
    their options.
    """
    for f in options_of(type(options)):
        value, check = getattr(options, f.name), f.metadata["option"].check
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str) and each:
                yield (f.name.replace("_", "-"), each,
                       check if isinstance(check, OutputKind) else None)


def same_file(path: str, other: str) -> bool:
    """True for two names of one file."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)
