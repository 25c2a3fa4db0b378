"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hpcpar.errors import InputError


def reason(err: OSError) -> str:
    """The cause of an error, extracted from HDF5's long message."""
    message = re.search(r"error message = '([^']*)'", str(err))
    if message:
        return message[1]
    return err.strerror or str(err).splitlines()[0]


@contextmanager
def atomic_path(path: str, what: str) -> Iterator[str]:
    """The path of a new file in the same folder, for the caller to write.

    It replaces `path` on success, and is removed on failure.

    Raises
    ------
    InputError
        The file cannot be written; `what` names its kind.
    """
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as err:
        raise InputError(f"cannot write {what} {path}: {reason(err)}; choose a folder that exists "
                         "and that you may write, with room") from err
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def write_text(path: str, text: str, what: str) -> None:
    """Writes a text file atomically; the errors are those of `atomic_path`."""
    with atomic_path(path, what) as temporary, open(temporary, "w", encoding="utf-8") as f:
        f.write(text)


def write_bytes(path: str, content: bytes | memoryview, what: str) -> None:
    """Writes a file atomically; the errors are those of `atomic_path`."""
    with atomic_path(path, what) as temporary, open(temporary, "wb") as f:
        f.write(content)
