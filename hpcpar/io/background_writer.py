"""Writes files while the caller goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hpcpar.errors import InputError, RunError


class BackgroundWriter:
    """Writes files in a thread, one after the other. Their content must not change meanwhile."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "hpcpar-writer")
        self._pending: list[Future[None]] = []
        #: Time (s) to write the last file.
        self.took_s = 0.0

    def submit(self, write: Callable[[], None]) -> None:
        """Queues a file."""
        self._pending.append(self._pool.submit(self._timed, write))

    def _timed(self, write: Callable[[], None]) -> None:
        begin_s = time.monotonic()
        write()
        self.took_s = time.monotonic() - begin_s

    @property
    def has_failed(self) -> bool:
        """True if a file could not be written."""
        return any(f.done() and f.exception() is not None for f in self._pending)

    def finish(self) -> None:
        """Waits for all files.

        Raises
        ------
        RunError
            A file could not be written.
        """
        pending, self._pending = self._pending, []
        wait(pending)
        try:
            for future in pending:
                future.result()
        except InputError as err:
            raise RunError(str(err)) from err
