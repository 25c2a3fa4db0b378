"""A lock that lets one sweep at a time work in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hpcpar.errors import InputError


@contextmanager
def alone(out: str) -> Iterator[None]:
    """Holds the folder's lock. On file systems without locks this does nothing.

    Raises
    ------
    InputError
        Another sweep holds the lock.
    """
    with open(os.path.join(out, ".lock"), "w", encoding="ascii") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise InputError(
                f"another sweep is at work in {out}; wait for it, or give another --out") from err
        except OSError:
            pass
        yield
