"""HDF5 files: the one module that opens them.

Damaged metadata can crash the library, or keep it busy and deaf to signals. `check` therefore reads
a file's metadata in a child process first.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError
from hpcpar.io.files import atomic_path, reason, require_regular
from hpcpar.io.read_limit import MOST_BYTES, limit_memory
from hpcpar.process.child import command
from hpcpar.process.signals import SIGNALS

#: Limits of a check: processor time (s), objects in a file.
CHECK_S, MOST_OBJECTS = 20, 100_000
#: Arrays up to this size are read even if they are larger than their (compressed) file.
_SMALL_BYTES = 1 << 20


def check(paths: Sequence[str], what: str, remedy: str, allow_external: bool = False) -> None:
    """Checks files from unknown sources before this process opens them.

    The check takes about 0.2 s; one rank of a job suffices. `open_hdf5` reports missing files.

    Raises
    ------
    InputError
        A file is damaged, or has data in other files without `allow_external`.
    """
    # a session of its own keeps signals to this process group (Ctrl-C) away from it
    done = subprocess.run([*command(__name__), str(CHECK_S), *paths], capture_output=True,
                          check=False, start_new_session=True)
    if -done.returncode in SIGNALS:  # a request to stop that went to all processes of the job
        os.kill(os.getpid(), -done.returncode)
        check(paths, what, remedy, allow_external)
        return
    if done.returncode == -signal.SIGXCPU:
        fault = [paths[0], "is damaged (reading its structure takes forever)"]
    elif done.returncode != 0:  # usually a signal
        fault = [paths[0], "is damaged (the HDF5 library crashes on it)"]
    else:
        fault = json.loads(done.stdout)
    if fault and not (allow_external and fault[1].startswith(_EXTERNAL)):
        raise InputError(f"{what} {fault[0]} {fault[1]}; {remedy}")


#: First words of the fault of files that refer to other files.
_EXTERNAL = "has data in other files"


def _fault(path: str) -> str:
    """The fault in a file's structure; empty if it has none or cannot be opened."""
    try:
        require_regular(path)
        f = h5py.File(path, "r")
    except OSError:
        return ""
    external = ""
    with f:
        todo: list[h5py.Group | h5py.Dataset] = [f["/"]]
        seen = set()
        while todo:
            item = todo.pop()
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > MOST_OBJECTS:
                return f"has more than {MOST_OBJECTS} objects"
            for name in item.attrs:
                item.attrs[name]
            if isinstance(item, h5py.Dataset):
                item.dtype, item.shape  # noqa: B018 - a damaged type raises
            if isinstance(item, h5py.Group):
                links = {name: item.get(name, getlink=True) for name in item}
                todo += [item[name] for name, link in links.items()
                         if isinstance(link, h5py.HardLink)]
                if any(isinstance(link, h5py.ExternalLink) for link in links.values()):
                    external = f"{_EXTERNAL} (links in {item.name})"
            elif isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
                external = f"{_EXTERNAL} ({item.name})"
            elif (isinstance(item, h5py.Dataset) and item.dtype.hasobject and item.shape
                  and memory_bytes(item) <= MOST_BYTES):
                item[...]  # follows the file's pointers to its texts
    return external and f"{external}, which only --allow-external reads"


def memory_bytes(values: h5py.Dataset) -> int:
    """Memory that reading takes: for all values, or for one chunk if that is larger."""
    count = max(math.prod(values.shape), math.prod(values.chunks or ()))
    return int(count * values.dtype.itemsize)


def _print_fault(limit_s: int, paths: Sequence[str]) -> None:
    """Prints the first faulty file and its fault as JSON; null if all files are sound.

    SIGXCPU ends this process after the limit, even without its parent.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
    limit_memory()  # a small file can refer to one long text many times
    for path in paths:
        try:
            fault = _fault(path)
        except Exception as err:  # whatever h5py raises on a damaged file
            cause = reason(err) if isinstance(err, OSError) else type(err).__name__
            fault = f"is damaged ({cause})"
        if fault:
            print(json.dumps([path, fault]))
            return
    print("null")


def open_hdf5(path: str, what: str, remedy: str) -> h5py.File:
    """Opens an HDF5 file for reading.

    Raises
    ------
    InputError
        The file is missing, truncated, unreadable or not HDF5; the message ends with `remedy`.
    """
    try:
        require_regular(path)
        return h5py.File(path, "r")
    except FileNotFoundError:
        fault = "does not exist"
    except OSError as err:
        if "truncated file" in str(err):
            fault = "is truncated (its end is missing)"
        elif "signature not found" in str(err):
            fault = "is not an HDF5 file"
        else:
            fault = f"cannot be read ({reason(err)})"
    raise InputError(f"{what} {path} {fault}; {remedy}")


def attributes(item: h5py.Group | h5py.Dataset, where: str, remedy: str) -> dict[str, Any]:
    """Attributes as plain numbers, strings and lists."""
    try:
        return {name: _plain(value) for name, value in item.attrs.items()}
    except (OSError, RuntimeError, ValueError) as err:
        raise InputError(f"{where} is damaged at the attributes of {item.name}; {remedy}") from err


def _plain(value: Any) -> Any:
    """An attribute as a number, a list, or a text whose invalid UTF-8 is replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def find(f: h5py.Group, name: str, kind: type = h5py.Dataset) -> Any:
    """The data set or group of this name; None if it is missing or a dangling link."""
    try:
        found = f.get(name)
    except (OSError, RuntimeError, ValueError):
        return None
    return found if isinstance(found, kind) and getattr(found, "shape", ()) is not None else None


def is_empty(values: h5py.Dataset) -> bool:
    """True if a data set claims a size but nothing was ever written to it."""
    return bool(values.size) and not values.id.get_storage_size()


def content(values: h5py.Dataset, where: str, remedy: str, most_bytes: int = 0) -> NDArray[Any]:
    """All values of a data set.

    Parameters
    ----------
    most_bytes : int
        Size limit of values that are larger than their file.

    Raises
    ------
    InputError
        The data set is damaged or too large.
    """
    fault = "is too large for such a file"
    if memory_bytes(values) <= max(most_bytes, values.file.id.get_filesize(), _SMALL_BYTES):
        try:
            return np.asarray(values[...])
        except (OSError, RuntimeError, ValueError, MemoryError) as err:
            fault = f"is damaged ({reason(err) if isinstance(err, OSError) else err})"
    raise InputError(f"{where}: '{values.name}' {fault}; {remedy}")


def array(f: h5py.Group, name: str, kinds: str, where: str, remedy: str,
          most_bytes: int = 0) -> NDArray[Any]:
    """All values of the data set of this name.

    Parameters
    ----------
    kinds : str
        Accepted kinds of dtype, as in NumPy: ``f``, ``iu``; ``O`` for texts, ``V`` for tables.
    most_bytes : int
        As in `content`.

    Raises
    ------
    InputError
        As in `content`; or the data set is missing or empty, or has another kind.
    """
    found = find(f, name)
    if found is None:
        fault = f"has no data set '{name}'"
    elif found.dtype.kind not in kinds:
        fault = f"has values of type {found.dtype} in '{name}'"
    elif is_empty(found):
        fault = f"has nothing in '{name}'"
    else:
        return content(found, where, remedy, most_bytes)
    raise InputError(f"{where} {fault}; {remedy}")


class _Sink(io.FileIO):
    """A file that reports every write to HDF5 as done: after a failed one, HDF5 crashes at exit."""

    #: The first error; nothing is written after it.
    error: OSError | None = None

    def write(self, content: Any) -> int:
        """Writes all bytes until the first error; always returns their number."""
        left = memoryview(content).cast("B")
        size = len(left)
        try:
            while len(left) and self.error is None:
                left = left[super().write(left):]
        except OSError as err:
            self.error = err
        return size


@contextmanager
def replacing(path: str, what: str) -> Iterator[h5py.File]:
    """A new HDF5 file that atomically replaces `path` on success and is deleted on failure."""
    with atomic_path(path, what) as temporary, _Sink(temporary, "w+") as sink:
        try:
            with h5py.File(sink, "w") as f:
                yield f
        finally:
            if sink.error is not None:
                raise sink.error


if __name__ == "__main__":
    _print_fault(int(sys.argv[1]), sys.argv[2:])
