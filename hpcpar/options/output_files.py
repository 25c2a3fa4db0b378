"""Output files of commands: all are distinct, and each replaces only a file of its own kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.files import is_special
from hpcpar.options.checks import ValueRefused
from hpcpar.options.fields import OptionGroup, options_of
from hpcpar.process.launchers import launcher

#: A resumed training run may replace the checkpoint that it started from.
_MAY_BE_ONE_FILE = {"checkpoint", "resume"}
#: A file's first bytes show its kind.
_HEAD_BYTES = 1 << 20
_HDF5 = rb"\A\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class OutputKind:
    """A kind of file; it is the check of options that name an output file.

    Attributes
    ----------
    pattern : bytes
        Regular expression that matches in the first mebibyte of such a file.
    holds : callable
        Returns whether an HDF5 file has this kind.
    suffixes : tuple of str
        Suffixes that a name may have; any if empty.
    folder : bool
        Whether it may be a folder.
    needs : str
        Package that writes such files, and its extra of hpcpar.
    """

    what: str
    pattern: bytes
    holds: Callable[[Any], bool] | None = None
    suffixes: tuple[str, ...] = ()
    folder: bool = False
    needs: tuple[str, str] | None = None

    def __call__(self, path: str) -> str:
        if self.suffixes and not path.lower().endswith(self.suffixes) and not is_special(path):
            raise ValueRefused(f"'{path}' is not the name of a {self.what}; use one that ends in "
                               f"{', '.join(self.suffixes)}")
        return path

    def check_place(self, path: str) -> None:
        """Checks that the file can be written, before anything is computed for it."""
        if self.needs and find_spec(self.needs[0]) is None:
            raise InputError(f"a {self.what} needs {self.needs[0]}; install it with: pip install "
                             f"'hpcpar[{self.needs[1]}]'")
        folder = os.path.dirname(os.path.realpath(path))
        if os.path.isdir(path) and not self.folder:
            fault = "it is a folder"
        elif not os.path.isdir(folder):
            fault = "its folder does not exist"
        elif not (os.access(folder, os.W_OK) or is_special(path)):
            fault = "its folder is not writable"
        else:
            return
        raise InputError(f"cannot write {self.what} {path}: {fault}; choose an existing, "
                         "writable folder")

    def check(self, path: str) -> None:
        """Checks that an existing file looks like this kind, so that it may be replaced."""
        if os.path.isfile(path):
            with open(path, "rb") as f:
                head = f.read(_HEAD_BYTES)
            if head and not re.search(self.pattern, head):
                raise self._foreign(path)

    def check_content(self, path: str) -> None:
        """Checks the content of an HDF5 file; one rank of a job suffices."""
        from hpcpar.io.hdf5 import check, open_hdf5

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
NETWORK = OutputKind("network file", rb'"hpcpar_network"', suffixes=(".json",))
MACHINE = OutputKind("machine file", rb"(?m)^\s*(\[\[\s*levels\s*\]\]|levels\s*=)")
PICTURE = OutputKind("picture", rb"(?s)\A(\x89PNG|%PDF|%!PS|\xff\xd8\xff|II\*|RIFF|<\?xml.*<svg)",
                     suffixes=(".png", ".pdf", ".svg", ".eps", ".ps", ".jpg", ".jpeg", ".tif",
                               ".tiff", ".webp"), needs=("matplotlib", "plot"))
TIMELINE = OutputKind("timeline", rb'\A\s*\{\s*"traceEvents"')
PROGRAMS = OutputKind("GOAL file", rb"\Anum_ranks \d", folder=True)
RECORD = OutputKind("run record", _HDF5, lambda f: "hpcpar_record" in f.attrs)
CHECKPOINT = OutputKind("checkpoint", _HDF5, lambda f: (
    "state" in f and "hpcpar_checkpoint" in f["state"].attrs))
METRICS = OutputKind("table of metrics", rb"\Aepoch,step,loss,")
STATE = OutputKind("state_dict of PyTorch", rb"(?s)\APK\x03\x04.{26}[^/]+/data\.pkl")
#: Users edit pages, so that an existing page is never replaced.
PAGE = OutputKind("new file", rb"(?!)")
HTML = OutputKind("HTML page of hpcpar", rb'<meta name="generator" content="hpcpar">',
                  suffixes=(".html",), needs=("matplotlib", "plot"))
DATA = OutputKind("data file", _HDF5, lambda f: "images" in f)


def check_outputs(options: OptionGroup) -> None:
    """Checks that a command's outputs are distinct files and replace only files of their kind."""
    for (one, path, kind), (other, other_path, other_kind) in combinations(_files(options), 2):
        same_target = kind and other_kind and (
            os.path.realpath(path) == os.path.realpath(other_path))
        writes = (kind or other_kind) and {one, other} != _MAY_BE_ONE_FILE
        if writes and (same_target or same_file(path, other_path)) and not is_special(path):
            raise InputError(f"{one} and {other} are one file, {path}; give each its own")
    for _, path, kind in _files(options):
        if kind:
            kind.check(path)
    if not launcher():
        check_places(options)


def check_places(options: OptionGroup) -> None:
    """Checks that a command's outputs can be written; one rank of a job suffices."""
    for _, path, kind in _files(options):
        if kind:
            kind.check_place(path)


def holds_something(path: str) -> bool:
    """True if the file exists and is not empty."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _files(options: OptionGroup) -> Iterator[tuple[str, str, OutputKind | None]]:
    """Option name, path and kind of each output; a text that may be another path has kind None."""
    for f in options_of(type(options)):
        value, check = getattr(options, f.name), f.metadata["option"].check
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str) and text:
                yield (f.name.replace("_", "-"), text,
                       check if isinstance(check, OutputKind) else None)


def same_file(path: str, other: str) -> bool:
    """True if both paths lead to one existing file."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)
