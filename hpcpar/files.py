"""Files that are written whole or not at all, and TOML files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hpcpar.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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


def read_toml(path: str, what: str, page: str) -> dict[str, Any]:
    """The content of a TOML file.

    Raises
    ------
    InputError
        The file cannot be read; `what` names its kind, `page` the documentation with an example.
    """
    try:
        with open(path, "rb") as f:
            return tomllib.load(f)
    except OSError as err:
        raise InputError(f"cannot read {what} {path}: {err.strerror}") from err
    except ValueError as err:
        raise InputError(f"{what} {path} are not TOML ({err}); {page} has an example") from err
