"""The limit on memory for reading files of unknown origin.

A reader first checks declared sizes with `require_memory`: of a chunk, a sample, an image or
all constants, not the size of the file. It then reads within `bounded`, because compressed data may
expand beyond their declared size.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from hpcpar.errors import InputError

#: Memory that reading one file may take at once.
MOST_BYTES = 1 << 30


def require_memory(need_bytes: int, what: str, remedy: str) -> None:
    """Refuses declared sizes above `MOST_BYTES`.

    Raises
    ------
    InputError
        It does; the message begins with `what` and ends with `remedy`.
    """
    if need_bytes > MOST_BYTES:
        raise InputError(f"{what}: reading it takes {need_bytes:,} bytes of memory at once, but "
                         f"hpcpar reads with at most {MOST_BYTES:,}; {remedy}")


def limit_memory(more_bytes: int = 0) -> None:
    """Limits the memory of this process to what it has, `MOST_BYTES` and `more_bytes`."""
    with open("/proc/self/statm", encoding="ascii") as f:
        used_bytes = int(f.read().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used_bytes + MOST_BYTES + more_bytes
    limit = limit if soft == resource.RLIM_INFINITY else min(soft, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


@contextmanager
def bounded(what: str, remedy: str, more_bytes: int = 0) -> Iterator[None]:
    """Within it, this process allocates at most `MOST_BYTES`, and `more_bytes` for its own arrays.

    Raises
    ------
    InputError
        More is needed; the message begins with `what` and ends with `remedy`.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(more_bytes)
    try:
        yield
    except MemoryError as err:
        raise InputError(f"{what}: reading it takes more than {MOST_BYTES:,} bytes of memory at "
                         f"once; {remedy}") from err
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
